// Log-likelihoods of texts.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lib/infer/text_model.h"

namespace tri {

// Tokens [first, size) are scored, each given those before it.
struct ScoredText {
  std::vector<int32_t> tokens;
  size_t first = 1;  // 1 <= first < size
};

template <class Archive>
void fields(Archive& archive, ScoredText& text) {
  archive(text.tokens, text.first);
}

struct TextScore {
  double logprob = 0;  // sum over the scored tokens, nats
  int64_t tokens = 0;
  bool is_greedy = true;  // every scored token is the most probable one
};

// Part of a text that fits into the context: tokens [begin, end) are the model's input, of which those from `scored` on
// predict a scored token.
struct ScoringWindow {
  size_t begin = 0, end = 0, scored = 0;
  bool operator==(const ScoringWindow&) const = default;
};
// Returns the windows that score a text. If all scored tokens fit into the context, the last window of the text;
// otherwise the contexts in which generation would sample the tokens (context.h).
std::vector<ScoringWindow> scoring_windows(size_t tokens, size_t first, size_t context);

// Returns a score per text on world rank 0; empty elsewhere. `on_pass(tokens)`, optional: after every pass, on every
// rank, with the tokens that it has scored. Collective, with the same arguments on all ranks.
std::vector<TextScore> score_texts(TextModel& model, std::span<const ScoredText> texts,
                                   const std::function<void(int64_t tokens)>& on_pass = {});

}  // namespace tri
