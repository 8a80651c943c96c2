// Choice of the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tri {

// temperature 0: the largest logit, the first of equals. Else a draw from softmax(logits / temperature) over the top_k
// largest (0 = all); `uniform` in [0, 1) decides, so equal inputs choose equally.
int32_t sample_token(std::span<const float> logits, double temperature, int top_k, double uniform);

}  // namespace tri
