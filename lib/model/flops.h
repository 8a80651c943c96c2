// Model FLOPs, the numerator of MFU: forward and backward, a multiply-add counts two.
#pragma once

#include "lib/config/config.h"

namespace tri {

// 6 · (parameters that multiply a token: matrices of the blocks, and the head) + 12 · L · NH · HS · T for attention
// over the full square. For a plain GPT this is 72·L·C² + 12·L·C·T + 6·V·C (Korthikanti et al. 2022 without recompute).
// Peers count attention so, causal or not, windowed or not; so do we.
double model_flops_per_token(const Config& config);

}  // namespace tri
