// Token and position embeddings. The token table is split over tp by vocabulary: this rank holds rows
// [first_token, first_token + Vl); tokens outside give zero rows, and the sum over tp is the embedding. `scale`
// multiplies the rows (Gemma: the root of C).
#pragma once

#include <array>

#include "kernels/core/tensor.h"

namespace tri {

struct EmbeddingForward {
  Tensor out;     // (R, C) T
  Tensor tokens;  // (R) i32, 0 <= token < V
  Tensor weight;  // (Vl, C) T
  int first_token = 0;
  float scale = 1.0f;
};
void check(const EmbeddingForward&);

// dweight[token - first_token] += scale · dout, rows of one token in ascending order of r: deterministic.
struct EmbeddingBackward {
  Tensor dweight;  // (Vl, C) f32
  Tensor dout;     // (R, C) T
  Tensor tokens;   // (R) i32
  int first_token = 0;
  float scale = 1.0f;
};
void check(const EmbeddingBackward&);

// inout[r] += weight[(first_row + r) % T]
struct PositionForward {
  Tensor inout;   // (Rl, C) T, rows [first_row, first_row + Rl) of the microbatch
  Tensor weight;  // (T, C) T
  int64_t first_row = 0;
};
void check(const PositionForward&);

// dweight[(first_row + r) % T] += dout[r], r ascending.
struct PositionBackward {
  Tensor dweight;  // (T, C) f32
  Tensor dout;     // (Rl, C) T
  int64_t first_row = 0;
};
void check(const PositionBackward&);

// The positions of rows in their documents, for look-ups in a table of positions or of rotary angles:
//   out[b, i] = p(i) - document_starts[b, p(i)]
// p(i): i, or with T < Tk the position of row i of two chunks (kernels/attention.h).
struct RowPositions {
  Tensor out;                               // (B·T) i32
  Tensor document_starts;                   // (B, Tk) i32: first_key of attention
  std::array<int, 2> chunk_start = {0, 0};  // only if T < Tk
};
void check(const RowPositions&);

}  // namespace tri
