// What decides precision.gemm: auto runs on any device: operands fit their memory and each other, numbers come out.
// That it is right shows on GPUs alone.
#include "lib/engine/fp8_speedup.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/device.h"

namespace tri {
namespace {

TEST(Fp8Speedup, times_layers_with_and_without_weight_gradients_in_fp8) {
  Config config;
  config.model = {.layers = 1, .hidden = 32, .heads = 2, .vocab = 200, .seq_len = 16};
  config.precision.compute = Dtype::kBF16;
  config.precision.gemm = GemmFormat::kFp8;
  const auto device = make_cpu_device();
  for (const GemmFormat wgrad : {GemmFormat::kFp8, GemmFormat::kCompute}) {
    config.precision.fp8_wgrad = wgrad;
    const double speedup = fp8_speedup(value_or_throw(resolve_config(config, 1)), make_mesh(0, {}), *device);
    EXPECT_TRUE(std::isfinite(speedup) && speedup > 0) << speedup;
  }
}

}  // namespace
}  // namespace tri
