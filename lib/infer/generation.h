// Generates text for many prompts, several at a time, with cached keys and values.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lib/infer/sampling.h"
#include "lib/infer/text_model.h"

namespace tri {

struct TextRequest {
  std::vector<int32_t> prompt;  // not empty; of a prompt that is longer than the context, the model sees the end
  int tokens = 0;               // maximum to generate, from 1
  uint64_t key = 0;             // token i is sampled with the i-th number of this stream
};

enum class Finish {
  kEnd,     // the model ended the text
  kStop,    // on_token did
  kLength,  // the maximum was reached
};

struct GenerationRules {
  Sampling sampling;
  int vocab = 0;     // only smaller ids are sampled
  int32_t end = -1;  // token that ends a text and is not part of it; -1: none
  // All are called on every rank, and optional. `generated`: all tokens so far. Returns whether the text ends here, the
  // same on all ranks.
  std::function<bool(size_t request, std::span<const int32_t> generated)> on_token = {};
  std::function<void(size_t request, std::span<const int32_t> generated, Finish finish)> on_finish = {};
  std::function<void()> on_pass = {};  // after every pass through the model
};

// Generates a text for each request. A text does not depend on the other requests, beyond rounding. Collective, with
// the same arguments on all ranks.
void generate_texts(TextModel& model, std::span<const TextRequest> requests, const GenerationRules& rules);

}  // namespace tri
