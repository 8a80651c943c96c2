// Which layers multiply in FP8, and the memory that they need.
#include "lib/model/fp8.h"

#include <gtest/gtest.h>

#include "lib/model/stage_tensors.h"

namespace tri {
namespace {

Config config_of(int first, int last) {
  Config config;
  config.model = {.layers = 6, .hidden = 64, .heads = 4, .vocab = 200, .seq_len = 16};
  config.parallel = {.pp = 2, .tp_transfers = Transfers::kCollectives, .dp_transfers = Transfers::kCollectives};
  config.parallel.pp_transfers = PpTransfers::kMessages;
  config.precision = {.gemm = GemmFormat::kFp8, .fp8_first_layers = first, .fp8_last_layers = last};
  return value_or_throw(resolve_config(config, 2));
}

TEST(Fp8Layers, the_first_and_the_last_stay_as_they_are) {
  const Config config = config_of(1, 2);
  const std::vector<int> expected = {0, 1, 1, 1, 0, 0};
  const Layers layers = layers_of_model(config);
  EXPECT_EQ(layers.kind_of, expected);
  ASSERT_EQ(layers.kinds.size(), 2);
  EXPECT_FALSE(layers.kinds[0].fp8);
  EXPECT_TRUE(layers.kinds[1].fp8);
  Config without = config;
  without.precision.gemm = GemmFormat::kCompute;
  EXPECT_EQ(layers_of_model(without).kinds, std::vector{layers.kinds[0]});
}

// Two bytes per parameter of the linears, on the stage with the layer; tensors that only GEMMs read are bytes.
TEST(Fp8Tensors, weights_in_both_orientations_and_inputs_as_bytes) {
  const Config config = config_of(1, 0);
  for (const int stage : {0, 1}) {
    const Mesh mesh = make_mesh(stage, {{"pp", 2}});
    Arena arena;
    const StageTensors tensors = allocate_stage(config, mesh, {1}, 8, arena);
    int64_t bytes = 0;
    for (const auto& [name, size] : arena.bytes_by_name())
      if (name == "fp8 weights") bytes = size;
    const int64_t layers = stage == 0 ? 2 : 3, C = config.model.hidden, F = config.model.ffn_hidden;
    EXPECT_EQ(bytes, 2 * layers * (3 * C * C + C * C + 2 * C * F));
    EXPECT_EQ(tensors.fp8.slots(), 3 * 6 * 4);
    const LayerTensors& first = tensors.chunks.front().front().layers.front();
    EXPECT_EQ(first.normed[0].dtype, stage == 0 ? Dtype::kF32 : Dtype::kE4M3);
    EXPECT_EQ(first.mlp.activated.empty(), stage == 1) << "FP8 GEMMs keep the transpose";
    EXPECT_EQ(first.mlp.activated_t.empty(), stage == 0);
    EXPECT_EQ(first.attention.out.dtype, Dtype::kF32) << "attention's backward reads it";
    const auto& weights = tensors.fp8.weights.front();
    EXPECT_EQ(weights.front().empty(), stage == 0) << "its first layer is none in FP8";
    const Fp8Weight& fc1 = weights.back()[2];
    EXPECT_EQ(fc1.values.shape_text(), fmt::format("({}, {}) e4m3", F, C));
    EXPECT_EQ(fc1.transposed.shape_text(), fmt::format("({}, {}) e4m3", C, F));
  }
}

TEST(Fp8Tensors, a_layer_in_fp8_fits_into_the_memory_of_one_that_is_not) {
  Config config = config_of(1, 0);
  config.parallel.recompute = Recompute::kFull;
  Arena arena;
  const StageTensors tensors = allocate_stage(config, make_mesh(0, {{"pp", 2}}), {1}, 8, arena);
  const LayerTensors compute = recomputed_tensors(tensors.work, layers_of_model(config)[0]);
  const LayerTensors fp8 = recomputed_tensors(tensors.work, layers_of_model(config)[1]);
  EXPECT_EQ(compute.normed[0].dtype, Dtype::kF32);
  EXPECT_EQ(fp8.normed[0].dtype, Dtype::kE4M3);
  EXPECT_EQ(fp8.normed[0].data, compute.normed[0].data);
  EXPECT_EQ(fp8.attention.qkv.dtype, Dtype::kF32);
  EXPECT_EQ(fp8.mlp.activated.data, tensors.work.mlp.fp8_activated.data);
  EXPECT_EQ(fp8.mlp.activated_t.data, fp8.mlp.activated.data) << "the rows are gone when the transpose is made";
  EXPECT_EQ(compute.mlp.activated.dtype, Dtype::kF32);
}

}  // namespace
}  // namespace tri
