// The work of attention over documents.
#pragma once

#include <cstdint>
#include <span>

namespace tri {

// Pairs of a query and a key within documents and a window W. The queries of a document of L tokens have min(L, W) keys
// each if masked ones count (`band`), and query i of it has min(i + 1, W) of them unmasked (`causal`), as in
// AttentionWork (lib/model/linear_spec.h).
struct AttentionPairs {
  int64_t band = 0, causal = 0;

  AttentionPairs& operator+=(const AttentionPairs& other) {
    band += other.band;
    causal += other.causal;
    return *this;
  }
  bool operator==(const AttentionPairs&) const = default;
};

// Returns the pairs of samples of `seq_len` tokens whose documents start at the positions `document_starts`, (samples,
// seq_len). `window` 0: no window.
AttentionPairs attention_pairs(std::span<const int32_t> document_starts, int64_t seq_len, int window);

}  // namespace tri
