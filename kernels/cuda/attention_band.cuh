// Which keys a query attends to, and which queries attend to a key, where documents or chunks of samples decide it.
// Fields and formulas: kernels/attention.h.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/dispatch.h"

namespace tri::cuda {

// The queries of a sample are rows 0..T - 1 in the order of their positions.
struct Band {
  const int* document_starts;  // AttentionForward::first_key, or null
  int seq_len, key_len;        // T, Tk
  int window;                  // W; 0: none
  int chunk;                   // rows of the first chunk: T/2 with kv, otherwise T
  int starts[2];               // positions of the chunks' first rows

  __device__ int position(int row) const { return row < chunk ? starts[0] + row : starts[1] + row - chunk; }
  // Returns the number of rows whose position is below this one.
  __device__ int rows_before(int position) const {
    return min(max(position - starts[0], 0), chunk) + min(max(position - starts[1], 0), seq_len - chunk);
  }
  // Returns the start of the document of a position of sample b; positions beyond the end count as the last.
  __device__ int document_start(int b, int position) const {
    return document_starts == nullptr ? 0 : __ldg(document_starts + int64_t{b} * key_len + min(position, key_len - 1));
  }
  __device__ int first_key(int b, int position) const {
    const int start = document_start(b, position);
    return window == 0 ? start : max(start, position - window + 1);
  }
  // Returns the last position in [key, end] whose document includes the key, which the key's own position always does.
  __device__ int document_end(int b, int key, int end) const {
    int last = key;
    for (int beyond = end + 1; last + 1 < beyond;) {
      const int middle = (last + beyond) / 2;
      (document_start(b, middle) <= key ? last : beyond) = middle;
    }
    return last;
  }
  // Returns the last position that attends to a key of a document that ends at `end`.
  __device__ int last_position(int key, int end) const { return window == 0 ? end : min(end, key + window - 1); }
};

// Returns whether a call needs a band; otherwise the window alone decides.
template <class Args>
bool has_band(const Args& a) {
  return !a.first_key.empty() || !a.kv.empty();
}
template <class Args>
Band band_of(const Args& a) {
  const bool chunks = !a.kv.empty();
  TRI_REQUIRE(!chunks || a.chunk_start[0] + a.seq_len / 2 <= a.chunk_start[1],
              "attention: chunks of {} / 2 queries at {} and {} are not in order", a.seq_len, a.chunk_start[0],
              a.chunk_start[1]);
  return {.document_starts = pointer<int>(a.first_key),
          .seq_len = a.seq_len,
          .key_len = key_len_of(a),
          .window = a.window >= key_len_of(a) ? 0 : a.window,
          .chunk = chunks ? a.seq_len / 2 : a.seq_len,
          .starts = {chunks ? a.chunk_start[0] : 0, chunks ? a.chunk_start[1] : 0}};
}

// Where the heads of a row of keys and values lie: in qkv, or in kv.
template <class Args>
QkvRow key_row_of(const Args& a) {
  QkvRow row = qkv_row_of(a);
  if (a.kv.empty()) return row;
  row.width = static_cast<int>(a.kv[1]);
  row.key_at = 0;
  row.value_at = row.width / 2;
  row.key_stride = row.head_size;
  return row;
}
template <class Args>
const Tensor& keys_of(const Args& a) {
  return a.kv.empty() ? a.qkv : a.kv;
}
inline const Tensor& key_gradients_of(const AttentionBackward& a) { return a.kv.empty() ? a.dqkv : a.dkv; }

}  // namespace tri::cuda
