// Which tokens of a text that is longer than the model's context the model sees. Generating with and without a cache,
// and scoring, use the same rule.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tri {

// Returns the first token that the model sees when it computes the token after the first `length`, given that the
// first `prompt` were known from the start. The model sees at most `context` tokens: of a longer prompt the last ones.
// When the context is full, its older half is dropped, so that cached keys and values remain valid for as many tokens.
inline size_t context_begin(size_t prompt, size_t length, size_t context) {
  const size_t begin = prompt > context ? prompt - context : 0;
  if (length <= begin + context) return begin;
  const size_t dropped = std::max<size_t>(1, context / 2);
  return begin + (length - begin - context + dropped - 1) / dropped * dropped;
}

}  // namespace tri
