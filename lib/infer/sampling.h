// Choice of the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tri {

struct Sampling {
  double temperature = 0.8;  // 0: the largest logit, the first of equals
  int top_k = 40;            // among this many largest logits; 0: all
  double top_p = 1.0;        // of those the fewest whose probabilities add up to this much
};

// A draw from softmax(logits / temperature) over what top_k and then top_p leave; `uniform` in [0, 1) decides, so equal
// inputs choose equally.
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform);

}  // namespace tri
