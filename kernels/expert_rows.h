// The rows of a mixture of experts: each token's row is needed by K experts. A pair (r, k), number p = r · K + k, is
// one row of one expert; the P = R · K pairs sorted by expert, stably, are the rows that the experts compute.
//   sort_pairs         place[p]: the sorted position of pair p; pair[i]: the pair at position i;
//                      offsets[e]: the first position of expert e; offsets[E] = P
//   merge_sources      the same for rows that arrive in S parts, each sorted by expert, of counts[s, e] rows: position
//                      pair[i] of the arrived rows moves to position i, and its expert's rows keep the order of the
//                      parts
//   gather_rows        out[i] = inp[index[i] / divisor], or weights[index[i]] · inp[index[i] / divisor]
//   combine_rows       out[r] = addend[r] + sum over k, ascending, of weights[r, k] · rows[place[r, k]]
//   combine_backward   drows[place[r, k]] = weights[r, k] · dout[r];  dweights[r, k] = dout[r] · rows[place[r, k]]
// The gradient of a gather with divisor K is combine_rows without weights; of a permutation, a gather with its inverse.
// A permutation of whole rows may use positions below their number only; nothing else is read or written.
#pragma once

#include "kernels/core/tensor.h"

namespace tri {

struct SortPairs {
  Tensor place;    // (R, K) i32: overwritten
  Tensor pair;     // (R · K) i32: overwritten
  Tensor offsets;  // (E + 1) i32: overwritten
  Tensor experts;  // (R, K) i32: in [0, E)
};
void check(const SortPairs&);

struct MergeSources {
  Tensor place;    // (P) i32: the inverse of `pair`
  Tensor pair;     // (P) i32: the arrived row at each sorted position. Rows beyond the sum of counts keep their values
  Tensor offsets;  // (E + 1) i32: overwritten
  Tensor counts;   // (S, E) i32: their sum is at most P
};
void check(const MergeSources&);

struct GatherRows {
  Tensor out;    // (P, C) T: overwritten
  Tensor inp;    // (R, C) T; other memory than out
  Tensor index;  // (P) i32: in [0, R · divisor)
  int divisor = 1;
  Tensor weights = {};  // (R · divisor) f32, optional
  Tensor used = {};     // (1) i32, optional: the number of rows of `out` that are written
};
void check(const GatherRows&);

struct CombineRows {
  Tensor out;      // (R, C) T: overwritten
  Tensor rows;     // (P, C) T; other memory than out
  Tensor place;    // (R, K) i32: in [0, P)
  Tensor weights;  // (R, K) f32, optional: absent for ones
  Tensor addend;   // (R, C) T, optional; may be out
};
void check(const CombineRows&);

struct CombineBackward {
  Tensor drows;     // (P, C) T: overwritten where `place` points; may be rows; optional
  Tensor dweights;  // (R, K) f32: overwritten
  Tensor dout;      // (R, C) T
  Tensor rows;      // (P, C) T
  Tensor place;     // (R, K) i32: different positions in [0, P)
  Tensor weights;   // (R, K) f32
};
void check(const CombineBackward&);

}  // namespace tri
