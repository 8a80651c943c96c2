// The memory of a stage: the order in which attention reads QKV rows, and what that takes.
#include "lib/model/stage_tensors.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

Config config_of(int heads, int kv_heads, Position position) {
  Config c;
  c.run.device = DeviceChoice::kCpu;
  c.model.layers = 2;
  c.model.hidden = 64;
  c.model.heads = heads;
  c.model.kv_heads = kv_heads;
  c.model.ffn_hidden = 64;
  c.model.vocab = 100;
  c.model.seq_len = 16;
  c.model.position = position;
  c.data.global_batch = c.data.micro_batch = 2;
  c.parallel.tp = 1;
  c.parallel.recompute = Recompute::kNone;
  return value_or_throw(resolve_config(c, 1));
}

TEST(AttentionOrder, rope_changes_it_where_a_rank_has_several_groups) {
  const auto order = [](int heads, int kv_heads, int tp, Position position = Position::kRope) {
    return attention_order(layer_spec(config_of(heads, kv_heads, position).model, 0).attention, tp);
  };
  EXPECT_EQ(order(8, 4, 1), QkvOrder::kByKind);
  EXPECT_EQ(order(8, 4, 2), QkvOrder::kByKind);
  EXPECT_EQ(order(8, 4, 4), QkvOrder::kGrouped) << "one key/value head is both orders";
  EXPECT_EQ(order(8, 1, 1), QkvOrder::kGrouped);
  EXPECT_EQ(order(8, 8, 1), QkvOrder::kGrouped) << "one stride as it is";
  EXPECT_EQ(order(8, 4, 1, Position::kLearned), QkvOrder::kGrouped) << "nothing would change it";
}

// A deferred weight gradient reads work.dqkv while the layer below makes its rows again.
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
