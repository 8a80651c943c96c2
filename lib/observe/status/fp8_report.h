// Statistics of a step's FP8 casts, over all ranks: for metrics.jsonl, and as warnings if casts lose too much.
#pragma once

#include <span>
#include <string>

#include "lib/model/fp8.h"

namespace tri {

// Returns a line of metrics.jsonl: {"fp8":{"step":100,"tensors":[{"tensor":"layers/0/attention/qkv/input","amax":3.5,
// "scale":64,"saturated":0,"underflowed":0.001}, ...]}}, with shares of the cast values. `numbers`: by slot.
std::string fp8_json(int64_t step, const Config& config, std::span<const Fp8Numbers> numbers);

// Returns the tensors beyond these shares, the worst of each kind: "fp8: layers/3/mlp/fc1/gradient saturated 0.4 % (1
// of 48 tensors)"; "" if there are none.
inline constexpr double kMostSaturated = 1e-3, kMostUnderflowed = 0.25;
std::string fp8_warning(const Config& config, std::span<const Fp8Numbers> numbers);

}  // namespace tri
