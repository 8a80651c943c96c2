// Chooses the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tri {

struct Sampling {
  double temperature = 0.8;  // 0: the largest logit, the first of equal ones
  int top_k = 40;            // among this many largest logits; 0: all
  double top_p = 1.0;        // of those, the fewest whose probabilities add up to this
};

// Replaces each logit by c · tanh(logit / c) with c = model.logit_softcap; 0: leaves them. The head's logits are those
// before the softcap.
void cap_logits(std::span<float> logits, double softcap);

// Samples from softmax(logits / temperature) over what remains after top_k and then top_p. `uniform`, in [0, 1),
// decides, so equal inputs give equal tokens.
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform);

}  // namespace tri
