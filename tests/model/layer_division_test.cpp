#include "lib/model/layer_division.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lib/model/flops.h"
#include "lib/model/parameter.h"

namespace tri {
namespace {

Config config_of(int layers, int pp, int chunks, const std::string& counts) {
  Config c;
  c.model = {.layers = layers, .hidden = 256, .heads = 4, .vocab = 8192, .seq_len = 64};
  c.data.global_batch = c.data.micro_batch;
  c.parallel = {.pp = pp, .chunks = chunks};
  if (chunks > 1) c.parallel.schedule = Schedule::kInterleaved;
  c.parallel.layers_per_chunk = counts;
  return value_or_throw(resolve_config(c, pp));
}

// The virtual stages hold all layers in order, whatever the division.
TEST(LayerDivision, every_layer_is_in_one_virtual_stage) {
  for (const auto& [layers, pp, chunks, counts] : {std::tuple(12, 4, 1, "even"),
                                                   {12, 2, 3, "even"},
                                                   {13, 4, 1, "auto"},
                                                   {126, 16, 2, "auto"},
                                                   {7, 7, 1, "auto"},
                                                   {9, 2, 2, "1,4,2,2"},
                                                   {9, 3, 1, "2x4 1"}}) {
    const Config c = config_of(layers, pp, chunks, counts);
    int next = 0;
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int rank = 0; rank < pp; ++rank) {
        const LayerRange range = layers_of(c, {rank, pp}, chunk);
        EXPECT_EQ(range.first, next) << counts;
        EXPECT_GE(range.count, 1) << counts;
        EXPECT_EQ(range.count,
                  layer_counts(c)[static_cast<size_t>(virtual_stage(c.parallel.schedule, {rank, pp}, chunk))]);
        next += range.count;
      }
    EXPECT_EQ(next, layers) << counts;
  }
}

TEST(LayerDivision, rank_0_of_a_folded_pipeline_has_the_first_layers_and_the_last) {
  Config c = config_of(13, 3, 2, "auto");
  c.parallel.schedule = Schedule::kZbV;
  const std::vector<int> counts = layer_counts(c);
  for (int rank = 0; rank < 3; ++rank) {
    const LayerRange down = layers_of(c, {rank, 3}, 0), up = layers_of(c, {rank, 3}, 1);
    EXPECT_EQ(down.count, counts[static_cast<size_t>(rank)]);
    EXPECT_EQ(up.count, counts[static_cast<size_t>(5 - rank)]);
    EXPECT_GE(up.first, down.first + down.count);
  }
  EXPECT_EQ(layers_of(c, {0, 3}, 0).first, 0);
  const LayerRange last = layers_of(c, {0, 3}, 1);
  EXPECT_EQ(last.first + last.count, 13);
  // The rank with the embedding and the head has fewer layers than the others.
  EXPECT_LT(counts[0] + counts[5], counts[1] + counts[4]);
}

TEST(LayerDivision, a_tied_table_of_a_folded_pipeline_is_one_parameter) {
  for (const bool tied : {true, false}) {
    Config c = config_of(12, 3, 2, "even");
    c.parallel.schedule = Schedule::kZbV;
    c.model.tie_embeddings = tied;
    int tables = 0, heads = 0;
    for (int rank = 0; rank < 3; ++rank)
      for (int chunk = 0; chunk < 2; ++chunk)
        for (const ParamSpec& spec : chunk_parameters(c, {rank, 3}, chunk)) {
          EXPECT_FALSE(spec.tied_copy || spec.reduced.contains("pp")) << spec.name;
          tables += spec.name == "embedding/tokens/weight" || spec.name.ends_with("tokens/weight");
          heads += spec.name.ends_with("head/weight");
        }
    EXPECT_EQ(tables, 1);
    EXPECT_EQ(heads, tied ? 0 : 1);
  }
}

// The head's FLOPs are those of 2.6 layers here, so its stage has fewer layers: no stage could give a layer to another
// one and shorten the longest.
TEST(LayerDivision, auto_balances_the_work_of_layers_embedding_and_head) {
  for (const int layers : {8, 13, 26, 40}) {
    const Config c = config_of(layers, 4, 1, "auto");
    const std::vector<int> counts = layer_counts(c);
    const double head = head_flops_per_token(c.model) * layers /
                        (model_flops_per_token(c, AttentionWork::kCausal) - head_flops_per_token(c.model));
    ASSERT_GT(head, 2);
    ASSERT_LT(head, 3);
    std::vector<double> work(counts.begin(), counts.end());
    work.back() += head;
    const auto [least, most] = std::ranges::minmax(work);
    if (counts.back() > 1) {
      EXPECT_LE(most - least, 1.25) << layers;
    }
    EXPECT_LT(counts.back(), counts.front()) << layers;
  }
}

TEST(LayerDivision, auto_counts_layers_that_multiply_fp8_or_are_recomputed_as_they_cost) {
  Config c = config_of(40, 4, 1, "auto");
  const int plain = layer_counts(c).back();
  c.parallel.recompute = Recompute::kFull;
  EXPECT_GE(layer_counts(c).back(), plain) << "layers cost more, so the head weighs less";
  c.parallel.recompute = Recompute::kNone;
  c.precision.compute = Dtype::kBF16;
  c.precision.gemm = GemmFormat::kFp8;
  EXPECT_LT(layer_counts(c).back(), plain);
}

// Norms, attention and activations take longer than their FLOPs, and recomputation repeats them in the backward pass.
TEST(LayerDivision, costs_of_stages_count_more_than_flops_and_what_is_repeated) {
  Config c = config_of(8, 4, 1, "even");
  c.parallel.schedule = Schedule::kZbH1;
  c.cluster.rank_tflops = 500;
  const auto inner = [&](Recompute recompute) {
    c.parallel.recompute = recompute;
    return stage_costs(c)[1];
  };
  const StageCost none = inner(Recompute::kNone), norms = inner(Recompute::kNorms),
                  selective = inner(Recompute::kSelective), full = inner(Recompute::kFull);
  const double layers = model_flops_per_token(c, AttentionWork::kCausal) - head_flops_per_token(c.model);
  const double tokens = static_cast<double>(c.data.micro_batch) * c.model.seq_len;
  const double by_flops = layers / 4 / 3 * tokens / 500e12;  // of a forward pass
  EXPECT_GT(none.forward, 1.05 * by_flops);
  EXPECT_LT(none.weight, by_flops) << "attention has no weights";
  for (const StageCost& cost : {norms, selective, full}) {
    EXPECT_EQ(cost.forward, none.forward);
    EXPECT_EQ(cost.weight, none.weight);
  }
  EXPECT_LT(none.backward, norms.backward);
  EXPECT_LT(norms.backward, selective.backward);
  EXPECT_LT(selective.backward, full.backward);
  EXPECT_GE(full.backward, none.backward + none.forward);
}

TEST(LayerDivision, stages_of_one_node_send_at_its_rate) {
  Config c = config_of(8, 4, 1, "even");
  c.parallel.schedule = Schedule::kZbH1;
  c.parallel.overlap_pp = false;
  c.cluster.node_gb_per_s = 400;
  c.cluster.network_gb_per_s = 50;
  c.cluster.ranks_per_node = 4;
  const double inside = stage_costs(c)[0].transfer, step = step_seconds(c, 8);
  c.cluster.ranks_per_node = 2;
  EXPECT_DOUBLE_EQ(stage_costs(c)[0].transfer, 8 * inside);
  EXPECT_GT(step_seconds(c, 8), step);
}

}  // namespace
}  // namespace tri
