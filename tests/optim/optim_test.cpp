#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/dims.h"
#include "kernels/cpu/device.h"
#include "lib/config/axis_fields.h"
#include "lib/optim/flat_layout.h"
#include "lib/optim/lr.h"
#include "lib/optim/optimizer.h"

namespace tri {
namespace {

std::vector<ParamSpec> some_specs() {
  std::vector<ParamSpec> specs;
  const int64_t sizes[] = {1000, 7, 128, 129, 50000, 64, 1, 3000, 256};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    ParamSpec spec{.name = "p" + std::to_string(i), .shape = {sizes[i] * 4}, .split_dim = i % 3 == 1 ? -1 : 0};
    if (spec.split_dim >= 0) spec.sharded = {"tp"};
    if (i == 0) spec.reduced = {"dp", "pp"};
    if (i % 3 == 1) spec.reduced = {"tp", "dp"};
    specs.push_back(spec);
  }
  return specs;
}

TEST(FlatLayout, keeps_its_promises_for_every_dp_and_bucket_size) {
  const std::vector<ParamSpec> specs = some_specs();
  for (const int tp : {1, 2, 4})
    for (int dp = 1; dp <= 8; ++dp)
      for (const int64_t bucket_elements : {1, 1024, 20000, 40000000}) {
        const Mesh mesh = make_mesh(0, {{"tp", tp}, {"dp", dp}, {"pp", 2}});
        const FlatLayout layout = make_flat_layout(specs, mesh, bucket_elements);
        std::vector<int> seen(specs.size());
        int64_t end = 0;
        for (size_t b = 0; b < layout.buckets.size(); ++b) {
          const Bucket& bucket = layout.buckets[b];
          EXPECT_EQ(bucket.first, end) << "a gap between buckets";
          EXPECT_EQ(bucket.size % (dp * kBlock), 0);
          end = bucket.first + bucket.size;
          int64_t at = bucket.first;
          for (size_t i = 0; i < bucket.parameters.size(); ++i) {
            const auto p = static_cast<size_t>(bucket.parameters[i]);
            ++seen[p];
            EXPECT_EQ(layout.bucket_of[p], static_cast<int>(b));
            EXPECT_EQ(layout.offset[p], at) << "tensors do not follow each other";
            EXPECT_EQ(layout.offset[p] % kBlock, 0);
            at += round_up(specs[p].local_numel(mesh), kBlock);
            if (i > 0) {
              EXPECT_LT(bucket.parameters[i], bucket.parameters[i - 1]) << "not in reverse order of use";
            }
            EXPECT_EQ(bucket.reduced, mesh.divided(specs[p].reduced)) << specs[p].name;
          }
          EXPECT_LE(at, end);
        }
        EXPECT_EQ(layout.size, end);
        int64_t place = 0;
        for (const Slices slices : {Slices::kWhole, Slices::kSharded}) {
          const int parts = slices == Slices::kWhole ? 1 : dp;
          const Mesh last = mesh.moved("dp", dp - 1);
          const std::vector<SliceRange> ranges = slice_ranges(layout, last, slices);
          ASSERT_EQ(ranges.size(), layout.buckets.size());
          place = 0;
          for (size_t b = 0; b < ranges.size(); ++b) {
            const Bucket& bucket = layout.buckets[b];
            EXPECT_EQ(ranges[b].size, bucket.size / parts);
            EXPECT_EQ(ranges[b].begin, bucket.first + bucket.size - bucket.size / parts);
            EXPECT_EQ(ranges[b].place, place);
            place += ranges[b].size;
          }
          EXPECT_EQ(place, layout.size / parts);
        }
        for (const int count : seen) EXPECT_EQ(count, 1);

        const std::vector<int> owners = block_owners(layout, specs, mesh);
        ASSERT_EQ(static_cast<int64_t>(owners.size()), layout.size / kBlock);
        std::vector<int64_t> blocks(specs.size());
        for (size_t b = 0; b < owners.size(); ++b) {
          if (owners[b] < 0) continue;
          const auto p = static_cast<size_t>(owners[b]);
          ++blocks[p];
          const int64_t element = static_cast<int64_t>(b) * kBlock - layout.offset[p];
          EXPECT_TRUE(element >= 0 && element < specs[p].local_numel(mesh));
        }
        for (size_t p = 0; p < specs.size(); ++p) EXPECT_EQ(blocks[p], ceil_div(specs[p].local_numel(mesh), kBlock));
      }
}

TEST(FlatLayout, a_parameter_whose_copies_would_drift_apart_over_dp_is_refused) {
  const std::vector<ParamSpec> specs{{.name = "p", .shape = {64}, .reduced = {"tp"}}};
  EXPECT_THROW(make_flat_layout(specs, make_mesh(0, {{"tp", 2}, {"dp", 2}}), 1024), std::exception);
  EXPECT_EQ(make_flat_layout(specs, make_mesh(0, {{"tp", 2}}), 1024).buckets.size(), 1u) << "dp has one rank";
}

TEST(FlatLayout, a_parameter_that_is_sharded_over_dp_has_a_bucket_of_its_own_axes) {
  const std::vector<ParamSpec> specs{
      {.name = "matrix", .shape = {1000}, .split_dim = 0, .sharded = {"tp"}, .reduced = {"dp"}, .decay = true},
      {.name = "own", .shape = {1000}, .split_dim = 0, .sharded = {"dp"}, .reduced = {"tp"}, .decay = true},
      {.name = "norm", .shape = {1000}, .reduced = {"tp", "dp"}}};
  const Mesh mesh = make_mesh(3, {{"tp", 2}, {"dp", 2}});
  const FlatLayout layout = make_flat_layout(specs, mesh, 1 << 20);
  ASSERT_EQ(layout.buckets.size(), 3u);
  const std::vector<SliceRange> ranges = slice_ranges(layout, mesh, Slices::kSharded);
  for (size_t p = 0; p < specs.size(); ++p) {
    const auto b = static_cast<size_t>(layout.bucket_of[p]);
    const Bucket& bucket = layout.buckets[b];
    const bool own = specs[p].name == "own";
    EXPECT_EQ(bucket.reduced, specs[p].reduced);
    EXPECT_EQ(bucket.sharded_over(), own ? AxisSet{} : AxisSet{"dp"}) << specs[p].name;
    EXPECT_EQ(bucket.remaining(), specs[p].reduced - AxisSet{"dp"}) << specs[p].name;
    EXPECT_EQ(ranges[b].size, own ? bucket.size : bucket.size / 2) << specs[p].name;
    EXPECT_EQ(bucket.size, round_up(specs[p].local_numel(mesh), own ? kBlock : 2 * kBlock)) << specs[p].name;
  }
}

TEST(FlatLayout, all_gradients_of_a_model_are_reduced_over_the_axes_that_divide_its_tokens) {
  EXPECT_EQ(kBucketAxes, kTokenAxes);
  EXPECT_EQ(ParamSpec{}.reduced, kTokenAxes);
  Config config;
  config.model = {.layers = 2, .hidden = 64, .heads = 4, .vocab = 200, .seq_len = 16};
  config.model.tie_embeddings = true;
  config.parallel.pp = 2;
  config = value_or_throw(resolve_config(config, 2));
  for (const int stage : {0, 1})
    for (const ParamSpec& spec : chunk_parameters(config, {stage, 2}, 0))
      EXPECT_TRUE((kTokenAxes - spec.reduced).empty()) << spec.name;
}

// With ZeRO 2 a bucket is open from its first gradient to its last, so gradients of different actions have buckets of
// their own. Other levels keep one layout for all schedules.
TEST(FlatLayout, gradients_of_different_actions_share_no_bucket) {
  Config config;
  config.model = {.layers = 4, .hidden = 64, .heads = 4, .vocab = 200, .seq_len = 16, .experts = 4};
  config.model.tie_embeddings = config.model.bias = false;
  config.parallel = {.pp = 2, .dp = 2, .schedule = Schedule::kZbH1};
  for (const int zero : {1, 2}) {
    config.parallel.zero = zero;
    const Config resolved = value_or_throw(resolve_config(config, 4));
    const Mesh mesh = mesh_of(resolved, 3);  // the last stage
    const std::vector<ParamSpec> specs = chunk_parameters(resolved, mesh.axis("pp"), 0);
    int undelayed = 0;
    for (const Bucket& bucket : make_flat_layout(specs, mesh, 1 << 30).buckets) {
      const auto count = std::ranges::count_if(bucket.parameters,
                                               [&](int index) { return specs[static_cast<size_t>(index)].undelayed; });
      EXPECT_TRUE(count == 0 || count == std::ssize(bucket.parameters));
      undelayed += static_cast<int>(count);
    }
    EXPECT_EQ(undelayed, zero == 2 ? 3 : 0) << "the head, and the second matrices of two layers' experts";
  }
}

// A model's layout: the weights of linears that are stored in FP8 come first, in separate buckets; weights used before
// and after them do not share a bucket. Everything else is as without FP8.
TEST(FlatLayout, quantized_weights_have_buckets_of_their_own) {
  Config config;
  config.model = {.layers = 4, .hidden = 64, .heads = 4, .vocab = 200, .seq_len = 16};
  config.precision.compute = Dtype::kBF16;
  config = value_or_throw(resolve_config(config, 1));
  const std::vector<ParamSpec> plain = chunk_parameters(config, {0, 1}, 0);
  EXPECT_EQ(make_flat_layout(plain, make_mesh(0, {{"dp", 2}}), 1 << 20).quantized, 0);
  config.precision.gemm = GemmFormat::kFp8;
  config.precision.fp8_first_layers = config.precision.fp8_last_layers = 1;
  const std::vector<ParamSpec> specs = chunk_parameters(config, {0, 1}, 0);
  for (const int64_t bucket_elements : {1000, 30000, 1 << 20}) {
    const FlatLayout layout = make_flat_layout(specs, make_mesh(0, {{"dp", 2}}), bucket_elements);
    int64_t quantized = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string& name = specs[i].name;
      const bool is_quantized = (name.find("layers/1/") == 0 || name.find("layers/2/") == 0) && specs[i].decay;
      EXPECT_EQ(specs[i].fp8_slot >= 0, is_quantized) << name;
      const Bucket& bucket = layout.buckets[static_cast<size_t>(layout.bucket_of[i])];
      EXPECT_EQ(bucket.quantized, is_quantized) << name;
      EXPECT_EQ(layout.offset[i] < layout.quantized, is_quantized) << name;
      if (is_quantized) quantized += specs[i].numel();
    }
    EXPECT_EQ(layout.quantized, quantized) << "sides of FP8 are multiples of a block";
    for (const Bucket& bucket : layout.buckets) {
      if (!bucket.matrices || bucket.quantized) continue;
      const auto [first, last] = std::ranges::minmax(bucket.parameters);
      for (int i = first; i <= last; ++i)
        EXPECT_LT(specs[static_cast<size_t>(i)].fp8_slot, 0) << "open over the quantized weights";
    }
  }
  config.precision.compute = Dtype::kF32;
  for (const ParamSpec& spec : chunk_parameters(config, {0, 1}, 0)) EXPECT_LT(spec.fp8_slot, 0) << "the master itself";
}

TEST(StoreTensors, know_over_which_axes_each_tensor_is_sharded) {
  StoreTensors store;
  store.runs = {{{"pp"}, {}, 0, 2}, {{"tp"}, {}, 2, 3}, {{}, {}, 5, 1}};  // two runs of sharded tensors
  store.num_tensors = 6;
  const std::vector<AxisSet> expected{{"pp"}, {"pp"}, {"tp"}, {"tp"}, {"tp"}, {}};
  for (int tensor = 0; tensor < store.num_tensors; ++tensor)
    EXPECT_EQ(store.sharded(tensor), expected[static_cast<size_t>(tensor)]) << tensor;
  EXPECT_THROW(store.sharded(6), std::exception);
}

// A rank of a model with a tied embedding, without peers: its groups have one rank.
struct LonelyRank {
  LonelyRank(int tp, int pp, int stage) {
    Config c;
    c.model = {.layers = 3, .hidden = 64, .heads = 4, .vocab = 200, .seq_len = 16};
    c.model.tie_embeddings = true;
    c.parallel = {.tp = tp, .pp = pp, .dp_transfers = Transfers::kCollectives};
    config = value_or_throw(resolve_config(c, tp * pp));
    mesh = mesh_of(config, 0).moved("pp", stage);
    Arena measuring;
    allocate(measuring);
    arena = std::make_unique<Arena>(*device, measuring.used());
    const StoreTensors tensors = allocate(*arena);
    store = std::make_unique<ParameterStore>(ParameterStoreContext{.config = config,
                                                                   .mesh = mesh,
                                                                   .tensors = tensors,
                                                                   .fp8 = {},
                                                                   .num_microbatches = 1,
                                                                   .device = *device,
                                                                   .compute = *compute,
                                                                   .dp = dp});
  }
  StoreTensors allocate(Arena& from) {
    const StoreTensors tensors = allocate_store(config, mesh, from);
    optimizer_tensors = allocate_optimizer(config, mesh, tensors, from);
    return tensors;
  }
  // Creates an optimizer with groups that sum over these axes.
  void optimizer_with(const std::vector<AxisName>& axes) {
    std::vector<AxisGroup> groups;
    for (const AxisName axis : axes) groups.push_back({axis, &dp.collectives()});
    Optimizer({.config = config,
               .store = *store,
               .tensors = optimizer_tensors,
               .sums = {},
               .norm_sq = {},
               .loss = {},
               .groups = groups,
               .dp = dp.collectives(),
               .world = dp.collectives(),
               .compute = *compute});
  }

  Config config;
  Mesh mesh;
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> compute = device->make_stream("compute");
  const std::unique_ptr<CommGroup> group = make_self_group("group");
  OneRankTransfers dp{GroupOnStream(*group, *compute, *device, TimeCategory::kDp)};
  std::unique_ptr<Arena> arena;
  OptimizerTensors optimizer_tensors;
  std::unique_ptr<ParameterStore> store;
};

// LAMB's norms of tensors would silently lack the other ranks' shards.
TEST(Optimizer, refuses_to_run_without_a_group_for_an_axis_to_sum_over) {
  LonelyRank alone(1, 1, 0);
  EXPECT_TRUE(alone.store->memory.axes_to_sum().empty());
  EXPECT_NO_THROW(alone.optimizer_with({}));
  LonelyRank first(2, 3, 0), middle(2, 3, 1), last(2, 3, 2);
  EXPECT_EQ(first.store->memory.axes_to_sum(), (AxisSet{"tp", "pp"})) << "the embedding is tied over stages";
  EXPECT_EQ(middle.store->memory.axes_to_sum(), AxisSet{"tp"});
  EXPECT_EQ(last.store->memory.axes_to_sum(), (AxisSet{"tp", "pp"}));
  EXPECT_NO_THROW(first.optimizer_with({"tp", "pp"}));
  EXPECT_NO_THROW(middle.optimizer_with({"tp"}));
  EXPECT_THROW(first.optimizer_with({"tp"}), std::exception);
  EXPECT_THROW(middle.optimizer_with({}), std::exception);
}

// Their states are tensors of a checkpoint, so each needs its own name.
TEST(Optimizers, every_kind_has_one_row_with_names_of_its_state) {
  EXPECT_EQ(optimizers().size(), EnumNames<OptimizerKind>::table.size());
  for (const auto& [kind, name] : EnumNames<OptimizerKind>::table) {
    const OptimizerRow& row = optimizer_row(kind);
    EXPECT_EQ(row.kind, kind) << name;
    EXPECT_NE(row.update, nullptr) << name;
    for (const std::string& state : row.state) {
      EXPECT_FALSE(state.empty() || state.find('/') != std::string::npos) << name << ": " << state;
      EXPECT_EQ(std::count(row.state.begin(), row.state.end(), state), 1) << name << ": " << state;
    }
  }
}

TEST(LearningRate, every_rule_at_its_corners) {
  LrConfig lr;
  lr.peak = 1.0;
  lr.min = 0.1;
  lr.warmup_steps = 9;
  lr.decay_steps = 109;
  lr.wsd_decay_fraction = 20.0 / 109;
  for (const auto& [rule, name] : EnumNames<LrRule>::table) {
    lr.rule = rule;
    EXPECT_DOUBLE_EQ(learning_rate(lr, 0), 0.1) << "warm-up begins above zero";
    EXPECT_DOUBLE_EQ(learning_rate(lr, 4), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(lr, 9), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(lr, 109), rule == LrRule::kConstant ? 1.0 : 0.1) << name;
    EXPECT_DOUBLE_EQ(learning_rate(lr, 100000), rule == LrRule::kConstant ? 1.0 : 0.1) << name;
  }
  lr.rule = LrRule::kLinear;
  EXPECT_DOUBLE_EQ(learning_rate(lr, 59), 0.55);
  lr.rule = LrRule::kCosine;
  EXPECT_DOUBLE_EQ(learning_rate(lr, 59), 0.55);
  EXPECT_NEAR(learning_rate(lr, 34), 0.1 + 0.9 * (1 + std::cos(M_PI / 4)) / 2, 1e-12);
  lr.rule = LrRule::kWsd;
  EXPECT_DOUBLE_EQ(learning_rate(lr, 89), 1.0);
  EXPECT_NEAR(learning_rate(lr, 99), 0.55, 1e-12);
}

TEST(LearningRate, by_tokens_equals_by_steps_at_a_constant_batch) {
  constexpr int64_t kTokens = 3072;  // of a step
  LrConfig steps;
  steps.min = 1e-5;
  steps.warmup_steps = 9;
  steps.decay_steps = 109;
  LrConfig tokens = steps;
  tokens.by = LrBy::kTokens;
  tokens.warmup_steps = tokens.decay_steps = 0;
  tokens.warmup_tokens = 9 * kTokens;
  tokens.decay_tokens = 109 * kTokens;
  steps.wsd_decay_fraction = tokens.wsd_decay_fraction = 20.0 / 109;
  for (const auto& [rule, name] : EnumNames<LrRule>::table) {
    steps.rule = tokens.rule = rule;
    for (int64_t step = 0; step < 130; ++step)
      EXPECT_NEAR(learning_rate(tokens, {.step = 7, .tokens = step * kTokens, .step_tokens = kTokens}),
                  learning_rate(steps, step), 1e-15)
          << name << " " << step;
  }
  // A step of another size advances by its own tokens.
  EXPECT_DOUBLE_EQ(learning_rate(tokens, {.tokens = kTokens, .step_tokens = 2 * kTokens}), tokens.peak * 3 / 11);
}

}  // namespace
}  // namespace tri
