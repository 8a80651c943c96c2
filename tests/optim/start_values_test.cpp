// Compares write_start_values with initial_values: parameters, and each rank's slices of the master weights.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/device.h"
#include "lib/optim/start_values.h"
#include "tests/model/initial_values.h"

namespace tri {
namespace {

float value_of(const Tensor& tensor, int64_t i) {
  return tensor.dtype == Dtype::kF32 ? tensor.as<float>()[i] : static_cast<float>(tensor.as<bf16>()[i]);
}

Config config_of(Dtype precision, int zero, Activation activation) {
  Config c;
  c.run.seed = 5;
  c.model = {.layers = 2, .hidden = 24, .heads = 4, .head_dim = 6, .kv_heads = 4, .ffn_hidden = 40};
  c.model.vocab = 131;  // padded
  c.model.seq_len = 6;
  c.model.activation = activation;
  c.precision.compute = precision;
  c.parallel.zero = zero;
  c.optimizer.ema = 0.9;
  c.parallel.bucket_elements = 4000;
  c.parallel.dp_transfers = Transfers::kCollectives;
  return c;
}

void expect_start_values(const Config& config, const Mesh& mesh) {
  SCOPED_TRACE(fmt::format("{} zero {} {} of dp {} tp {}", enum_name(config.precision.compute), config.parallel.zero,
                           mesh.place(), mesh.axis("dp").size, mesh.axis("tp").size));
  const auto device = make_cpu_device();
  const auto compute = device->make_stream("compute");
  Arena measuring;
  allocate_store(config, mesh, measuring);
  Arena arena(*device, measuring.used());
  std::memset(arena.memory(), 0xFF, static_cast<size_t>(measuring.used()));  // NaN
  const ParameterMemory memory(config, mesh, allocate_store(config, mesh, arena), *compute);
  write_start_values(memory, mesh, config.run.seed, *compute);

  const ChunkStoreTensors& chunk = memory.tensors().chunks.front();
  std::vector<float> expected(static_cast<size_t>(chunk.layout.size), 0.0f);  // 0 between the tensors
  for (const Parameter& parameter : memory.parameters().front()) {
    const std::vector<float> values = initial_values(parameter.spec, mesh.axis("tp"), config.run.seed);
    std::copy(values.begin(), values.end(),
              expected.begin() + chunk.layout.offset[static_cast<size_t>(parameter.index)]);
  }
  const bool mixed = config.precision.compute != Dtype::kF32;
  for (int64_t i = 0; i < chunk.layout.size; ++i) {
    const float value = expected[static_cast<size_t>(i)];
    ASSERT_EQ(value_of(chunk.parameters, i), mixed ? static_cast<float>(bf16(value)) : value) << i;
  }
  for (const BucketSlice& slice : memory.slices()) {
    const Bucket& bucket = *memory.buckets()[static_cast<size_t>(slice.bucket)].bucket;
    const int64_t first = bucket.first + (config.parallel.zero >= 1 ? mesh.axis("dp").rank * slice.master.numel() : 0);
    for (int64_t i = 0; i < slice.master.numel(); ++i) {
      ASSERT_EQ(value_of(slice.master, i), expected[static_cast<size_t>(first + i)]) << first + i;
      ASSERT_EQ(value_of(slice.ema, i), value_of(slice.master, i)) << first + i;
    }
  }
}

TEST(StartValues, are_the_initial_values_on_every_rank) {
  for (const Dtype precision : {Dtype::kF32, Dtype::kBF16})
    for (const Activation activation : {Activation::kGelu, Activation::kSwiglu})
      for (const int zero : {0, 1, 2})
        for (const auto& [tp, dp] : {std::pair{1, 1}, {1, 3}, {2, 2}, {4, 1}})
          for (int rank = 0; rank < tp * dp; ++rank)
            expect_start_values(config_of(precision, zero, activation), make_mesh(rank, {{"tp", tp}, {"dp", dp}}));
}

}  // namespace
}  // namespace tri
