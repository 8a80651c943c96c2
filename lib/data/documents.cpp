#include "lib/data/documents.h"

#include <algorithm>

#include "io/base/error.h"

namespace tri {

AttentionPairs attention_pairs(std::span<const int32_t> document_starts, int64_t seq_len, int window) {
  const auto count = static_cast<int64_t>(document_starts.size());
  TRI_REQUIRE(seq_len > 0 && count % seq_len == 0 && window >= 0, "{} starts of samples of {}, window {}", count,
              seq_len, window);
  AttentionPairs pairs;
  for (int64_t begin = 0, end; begin < count; begin = end) {
    const int64_t end_of_sample = begin + seq_len - begin % seq_len;
    const int32_t start = document_starts[static_cast<size_t>(begin)];
    for (end = begin + 1; end < end_of_sample && document_starts[static_cast<size_t>(end)] == start;) ++end;
    const int64_t length = end - begin, most = window > 0 ? std::min<int64_t>(window, length) : length;
    pairs.band += length * most;
    pairs.causal += length * most - most * (most - 1) / 2;
  }
  return pairs;
}

}  // namespace tri
