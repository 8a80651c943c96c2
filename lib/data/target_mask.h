// Loss masks within a batch. A sample of T + 1 tokens stores the complement (~) of a token, which is negative, if the
// token is not trained as a target; it remains an input. The first token of a sample is an input only.
#pragma once

#include <cstdint>

#include "kernels/no_target.h"

namespace tri {

constexpr int32_t masked(int32_t token) { return token < 0 ? token : ~token; }
constexpr int32_t token_of(int32_t stored) { return stored < 0 ? ~stored : stored; }
constexpr int32_t target_of(int32_t stored) { return stored < 0 ? kNoTarget : stored; }

}  // namespace tri
