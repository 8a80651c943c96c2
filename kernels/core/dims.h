// The letters of every shape comment in this project, and the alignment that flat buffers rely on.
//
//   B microbatch size   T sequence length   C model width (hidden)   R rows of a microbatch, B·T, batch-major
//   NH attention heads  NKV key/value heads  G = NH / NKV  HS head size
//   F feed-forward width  V vocabulary, padded to kVocabMultiple  L layers  W attention window (0 = full)
//   suffix l = this tensor-parallel rank's share: Rl = R / tp, NHl = NH / tp, Fl = F / tp, Vl = V / tp
//
// Row r of a microbatch is token r % T of sequence r / T. Under sequence parallelism tp rank k owns rows [k·Rl,
// (k+1)·Rl). QKV rows are grouped by key/value head: (NKV, G + 2, HS) = G queries, one key, one value; a tp share is
// contiguous. Attention may read rows ordered by kind instead (qkv_row.h). A row of SwiGLU's input is (2, F): gate,
// then up.
#pragma once

#include <cstdint>

namespace tri {

inline constexpr int kVocabMultiple = 128;  // padding of the vocabulary; independent of tp, so that shapes are too
inline constexpr int kBlock = 128;          // elements; every tensor in a flat buffer starts at a multiple of it

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace tri
