// Initial values on the host, from the reference kernel: the expected contents of a rank's part of a parameter after
// the store has initialised it on the device.
#pragma once

#include <vector>

#include "kernels/cpu/ops.h"
#include "lib/model/parameter.h"

namespace tri {

// Returns this rank's part for any rule, as floats in local element order.
inline std::vector<float> initial_values(const ParamSpec& spec, Axis tp, uint64_t seed) {
  const int64_t count = spec.local_numel(tp.size);
  std::vector<float> values(static_cast<size_t>(count), spec.init == InitRule::kOnes ? 1.0f : 0.0f);
  if (spec.init != InitRule::kNormal) return values;
  NormalValues normal = normal_start(spec, tp, seed);
  normal.out = {values.data(), Dtype::kF32, {count}};
  check(normal);
  cpu::normal_values(normal);
  return values;
}

}  // namespace tri
