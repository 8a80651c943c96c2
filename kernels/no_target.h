// The target of a row that a loss ignores (cross_entropy.h), such as a row of a sample that only fills up a batch: it
// adds nothing to the loss, and the gradient of its logits is zero.
#pragma once

#include <cstdint>

namespace tri {

inline constexpr int32_t kNoTarget = -1;

}  // namespace tri
