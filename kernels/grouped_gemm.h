// GEMMs of E experts whose rows lie one after the other: rows [offsets[e], offsets[e + 1]) belong to expert e. The
// offsets are in device memory, so no host wait is needed. Sums in fp32; letters as in a linear layer: K inputs, N
// outputs; P rows of memory, of which the first offsets[E] are used. Other rows are neither read nor written.
//   grouped_forward          out = inp · weight[e]^T          (P, N)
//   grouped_input_gradient   dinp = dout · weight[e]          (P, K)
//   grouped_weight_gradient  dweight[e] = beta · dweight[e] + dout[rows of e]^T · inp[rows of e]     (E, N, K)
// An expert without rows has a zero gradient: with beta 0 its part of dweight is overwritten with zeros.
// The same of FP8 operands (kernels/fp8.h), whose scale factors all experts share. As GPUs need the summed dimension
// innermost, the gradient of inputs is the forward product with transposed weights, and that of weights reads
// transposed rows, an expert's rows being columns:
//   grouped_fp8_gemm         out = inverse_a · inverse_b · a · b[e]^T
//   grouped_fp8_gradient     dweight[e] = beta · dweight[e] + inverse_a · inverse_b · dout_t · inp_t^T, e's columns
#pragma once

#include "kernels/fp8.h"

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

// The innermost dims of FP8 operands are multiples of kFp8Multiple; at most one operand is E5M2.
struct GroupedFp8Gemm {
  Tensor out;                   // (P, M) f32|bf16: overwritten
  Tensor a;                     // (P, N) e4m3|e5m2
  Tensor b;                     // (E, M, N) e4m3
  Tensor offsets;               // (E + 1) i32
  Tensor inverse_a, inverse_b;  // (1) f32
  Fp8Accumulation accumulation = Fp8Accumulation::kFp32;
};
void check(const GroupedFp8Gemm&);

struct GroupedFp8Gradient {
  Tensor dweight;               // (E, M, N) f32
  Tensor dout_t;                // (M, P) e4m3|e5m2
  Tensor inp_t;                 // (N, P) e4m3
  Tensor offsets;               // (E + 1) i32
  Tensor inverse_a, inverse_b;  // (1) f32: of dout_t, inp_t
  float beta = 0.0f;            // 0 or 1
  Fp8Accumulation accumulation = Fp8Accumulation::kFp32;
};
void check(const GroupedFp8Gradient&);

}  // namespace tri
