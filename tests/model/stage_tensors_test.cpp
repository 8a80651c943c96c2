// The memory of a stage: the order in which attention reads QKV rows, and its cost.
#include "lib/model/stage_tensors.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

Config config_of(int heads, int kv_heads, Position position) {
  Config c;
  c.run.device = DeviceChoice::kCpu;
  c.model = {.layers = 2, .hidden = 64, .heads = heads, .kv_heads = kv_heads, .ffn_hidden = 64, .vocab = 100};
  c.model.seq_len = 16;
  c.model.position = position;
  c.data.global_batch = c.data.micro_batch = 2;
  c.parallel = {.tp = 1, .recompute = Recompute::kNone};
  return value_or_throw(resolve_config(c, 1));
}

TEST(AttentionOrder, rope_changes_it_where_a_rank_has_several_groups) {
  const auto order = [](int heads, int kv_heads, int tp, Position position = Position::kRope) {
    return attention_order(layers_of_model(config_of(heads, kv_heads, position))[0].attention, tp);
  };
  EXPECT_EQ(order(8, 4, 1), QkvOrder::kByKind);
  EXPECT_EQ(order(8, 4, 2), QkvOrder::kByKind);
  EXPECT_EQ(order(8, 4, 4), QkvOrder::kGrouped) << "one key/value head is both orders";
  EXPECT_EQ(order(8, 1, 1), QkvOrder::kGrouped);
  EXPECT_EQ(order(8, 8, 1), QkvOrder::kGrouped) << "one stride as it is";
  EXPECT_EQ(order(8, 4, 1, Position::kLearned), QkvOrder::kGrouped) << "nothing would change it";
}

int64_t elements(std::initializer_list<Tensor> tensors) {
  int64_t sum = 0;
  for (const Tensor& tensor : tensors) sum += tensor.empty() ? 0 : tensor.numel();
  return sum;
}

// The simulator uses these numbers to estimate memory.
TEST(StageTensors, a_layer_states_what_is_allocated_for_it) {
  struct Case {
    int kv_heads;
    Position position;
    QkNorm qk_norm;
    Activation activation;
  };
  for (const Case& one : {Case{8, Position::kLearned, QkNorm::kNone, Activation::kGelu},
                          Case{4, Position::kRope, QkNorm::kNone, Activation::kSwiglu},
                          Case{2, Position::kRope, QkNorm::kHead, Activation::kSwiglu},
                          Case{8, Position::kRope, QkNorm::kFull, Activation::kGeluErf}})
    for (const int tp : {1, 2})
      for (const GemmFormat gemm : {GemmFormat::kCompute, GemmFormat::kFp8})
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
          Config config = config_of(8, one.kv_heads, one.position);
          config.model.qk_norm = one.qk_norm;
          config.model.activation = one.activation;
          config.model.head_dim = 32;  // wider than the rest
          config.parallel.tp = tp;
          config.parallel.tp_transfers = Transfers::kCollectives;
          config.parallel.recompute = recompute;
          config.precision.gemm = gemm;
          Arena arena;
          const StageTensors stage = allocate_stage(config, make_mesh(0, {{"tp", tp}}), {1}, 1, arena);
          const LayerSpec layer = layers_of_model(config)[1];
          const LayerTensors& kept = stage.chunks[0][0].layers[1];
          const AttentionWorkspace& attention = stage.work.attention;
          const MlpWorkspace& mlp = stage.work.mlp;
          const double rows = 2.0 * 16 / tp;
          const AttentionTensors& a = kept.attention;
          EXPECT_EQ(elements({a.projected, a.qkv, a.out, kept.mlp.fc1}), rows * layer.kept_elements());
          EXPECT_EQ(elements({a.lse}), rows * layer.kept_statistics());
          EXPECT_EQ(elements({a.qk_rstd}), rows * tp * layer.attention.unsplit_statistics());
          const Tensor activated = gemm == GemmFormat::kFp8             ? kept.mlp.activated_t
                                   : recompute == Recompute::kSelective ? mlp.activated
                                                                        : kept.mlp.activated;
          const bool is_shared = gemm == GemmFormat::kFp8 && recompute == Recompute::kSelective;
          EXPECT_EQ(elements({activated}), is_shared ? 0 : rows * layer.activated_elements());
          const bool in_place = mlp.dactivated.data == mlp.dfc1.data;
          EXPECT_EQ(elements({attention.dout, attention.dqkv, attention.rope_input, mlp.dfc1,
                              in_place ? Tensor{} : mlp.dactivated}),
                    rows * layer.workspace_elements(attention_order(layer.attention, tp)));
          if (gemm != GemmFormat::kFp8) continue;
          EXPECT_EQ(
              elements({attention.fp8_out, attention.fp8_dqkv, attention.fp8_dqkv_t, mlp.fp8_dfc1, mlp.fp8_dfc1_t}),
              rows * layer.cast_bytes());
          EXPECT_EQ(elements({stage.work.fp8.input_transpose}), 2 * 16 * layer.widest_input(tp));
          EXPECT_EQ(layer.widest_input(tp), 8 * 32 / tp) << "of proj";
        }
}

// A deferred weight gradient reads work.dqkv while the layer below recomputes its rows.
TEST(StageTensors, what_rope_reads_has_memory_of_its_own_where_the_order_changes) {
  const auto allocate = [](int kv_heads, Arena& arena) {
    const Config config = config_of(8, kv_heads, Position::kRope);
    return allocate_stage(config, make_mesh(0, {}), {1}, 1, arena).work;
  };
  Arena grouped, by_kind;
  EXPECT_TRUE(allocate(8, grouped).attention.rope_input.empty());
  const LayerWorkspace work = allocate(4, by_kind);
  EXPECT_EQ(work.attention.rope_input.shape_text(), work.attention.dqkv.shape_text());
  EXPECT_EQ(work.attention.rope_input.shape_text(), "(32, 128) fp32");
  EXPECT_GE(std::abs(static_cast<char*>(work.attention.rope_input.data) - static_cast<char*>(work.attention.dqkv.data)),
            work.attention.dqkv.bytes());
}

}  // namespace
}  // namespace tri
