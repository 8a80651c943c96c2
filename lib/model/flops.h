// Model FLOPs, the numerator of MFU: forward and backward. A multiply-add counts as two; recomputed work counts once.
#pragma once

#include <vector>

#include "lib/model/layer_spec.h"

namespace tri {

// Returns 6 · (parameters that multiply a token: matrices of the blocks, and the head) + 12 · L · NH · HS · (keys per
// query). For a plain GPT with kBand this is 72·L·C² + 12·L·C·T + 6·V·C (Korthikanti et al. 2022 without recompute).
double model_flops_per_token(const Config& config, AttentionWork work = AttentionWork::kBand);
// Returns the FLOPs of `tokens` tokens in documents, for which attention_windows' layers have `pairs` pairs of a query
// and a key.
double model_flops(const Config& config, double tokens, const std::vector<double>& pairs);
// Returns the windows of the model's layers, ascending, each once; 0: none.
std::vector<int> attention_windows(const Config& config);
// The head's part of them. The others are the layers': LayerSpec::flops_per_token.
double head_flops_per_token(const ModelConfig& model);

}  // namespace tri
