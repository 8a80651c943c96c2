// GEMMs of E experts whose rows lie one after the other: rows [offsets[e], offsets[e + 1]) belong to expert e. The
// offsets are in device memory, so no host wait is needed. Sums in fp32; letters as in a linear layer: K inputs, N
// outputs; P rows of memory, of which the first offsets[E] are used. Other rows are neither read nor written.
//   grouped_forward          out = inp · weight[e]^T          (P, N)
//   grouped_input_gradient   dinp = dout · weight[e]          (P, K)
//   grouped_weight_gradient  dweight[e] = beta · dweight[e] + dout[rows of e]^T · inp[rows of e]     (E, N, K)
// An expert without rows has a zero gradient: with beta 0 its part of dweight is overwritten with zeros.
#pragma once

#include "kernels/core/tensor.h"

namespace tri {

struct GroupedForward {
  Tensor out;      // (P, N) T: overwritten
  Tensor inp;      // (P, K) T
  Tensor weight;   // (E, N, K) T
  Tensor offsets;  // (E + 1) i32: ascending, from 0, at most P
};
void check(const GroupedForward&);

struct GroupedInputGradient {
  Tensor dinp;     // (P, K) T: overwritten
  Tensor dout;     // (P, N) T
  Tensor weight;   // (E, N, K) T
  Tensor offsets;  // (E + 1) i32
};
void check(const GroupedInputGradient&);

struct GroupedWeightGradient {
  Tensor dweight;     // (E, N, K) f32
  Tensor dout;        // (P, N) T
  Tensor inp;         // (P, K) T
  Tensor offsets;     // (E + 1) i32
  float beta = 0.0f;  // 0 or 1
};
void check(const GroupedWeightGradient&);

}  // namespace tri
