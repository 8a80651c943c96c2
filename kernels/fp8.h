// Operations on FP8 tensors with one scale per tensor, a power of two, so that scaling is exact in both directions.
//   values = fp8(x · scale), x ≈ values · inverse, inverse = 1 / scale
// The formats and their rounding: kernels/core/fp8.h. How training uses these: kernels/FP8.md.
#pragma once

#include "kernels/core/fp8.h"
#include "kernels/core/kinds.h"
#include "kernels/core/tensor.h"
#include "kernels/norm.h"

namespace tri {

// amax = max(amax, |inp|). NaN counts as more than infinity and stays.
struct Fp8Amax {
  Tensor amax;       // (1) f32, not negative
  Tensor inp;        // (R, C) f32|bf16
  Tensor used = {};  // (1) i32, optional: the number of rows that are read
};
void check(const Fp8Amax&);

// The counters of a cast. They have 64 bits because a rank may cast more than 2^32 elements in one step.
enum class Fp8Count { kElements, kSaturated, kUnderflowed };
inline constexpr int kNumFp8Counts = 3;

// out = fp8(inp · scale), in one orientation or both. Finite numbers beyond the format's range saturate. Infinities and
// NaN become NaN, so that they are not hidden.
struct Fp8Cast {
  Tensor out;    // (R, C) e4m3|e5m2, optional
  Tensor out_t;  // (C, R) the transpose, optional
  Tensor inp;    // (R, C) f32|bf16
  Tensor scale;  // (1) f32
  Tensor amax;   // (1) f32, optional: as in Fp8Amax
  // (kNumFp8Counts) i64, optional, added to: all elements; finite ones beyond the range; nonzero ones that become zero.
  Tensor counts;
  Tensor dbias;  // (C) f32, optional, added to in a fixed order: sums of inp over its rows
  // (1) i32, optional, without dbias: the number of rows that are cast. The others are not read; their places in the
  // outputs keep their bytes or become zeros.
  Tensor used = {};

  Dtype format() const { return out.empty() ? out_t.dtype : out.dtype; }
};
void check(const Fp8Cast&);

// Quantizes a slice of a flat buffer (kernels/optimizer.h), each tensor with its own scale.
struct Fp8SliceWeights {
  Tensor out;     // (n) e4m3; absent: nothing is quantized
  Tensor slot;    // (S) i32: each tensor's index into the arrays below; -1 for tensors without one in this slice
  Tensor scale;   // (slots) f32
  Tensor amax;    // (slots) f32: as in Fp8Amax
  Tensor counts;  // (slots, kNumFp8Counts) i64: as in Fp8Cast
};
void check(const char* op, const Fp8SliceWeights& quantized, int64_t n);

// Quantizes fp32 numbers; padding is not written.
struct Fp8CastSlice {
  Fp8SliceWeights quantized;
  Tensor inp;           // (n) f32
  Tensor block_tensor;  // (n / kBlock) i32: the tensor that owns each block, -1: padding
};
void check(const Fp8CastSlice&);

// The norm of kernels/norm.h, rounded to the type of inp and quantized at once. The unquantized result is not stored.
struct Fp8NormForward {
  NormForward norm;  // without out
  Fp8Cast cast;      // without inp, which is (R, C); out alone, e4m3
};
void check(const Fp8NormForward&);

// The activation of kernels/activation.h, rounded to the type of inp and quantized at once. The unquantized result is
// not stored.
struct Fp8ActivationForward {
  Activation kind = Activation::kGelu;
  Tensor inp;    // (R, F) T, or (R, 2F) T for SwiGLU
  Fp8Cast cast;  // without inp, which is (R, F), and dbias
};
void check(const Fp8ActivationForward&);

// The same for the activation's gradient.
struct Fp8ActivationBackward {
  Activation kind = Activation::kGelu;
  Tensor dout;   // (R, F) T
  Tensor inp;    // (R, F) T, or (R, 2F) T for SwiGLU
  Fp8Cast cast;  // without inp, which is like inp
};
void check(const Fp8ActivationBackward&);

// out = inp^T, of one matrix or of each of n.
struct Fp8Transpose {
  Tensor out;        // (C, R) or (n, C, R) e4m3|e5m2
  Tensor inp;        // (R, C) or (n, R, C) same type
  Tensor used = {};  // (1) i32, optional, of one matrix: rows from here on need not be transposed
};
void check(const Fp8Transpose&);

// Sets scales from the largest absolute values. The power of two s for an amax is the largest with
//   amax · s <= limit / kFp8Headroom
// limited to 2^±kFp8MostExponent; 1 for an amax that is zero, infinite or NaN.
inline constexpr float kFp8Headroom = 2.0f;
inline constexpr int kFp8MostExponent = 60;
// cuBLASLt reads scales only at multiples of sixteen bytes.
inline constexpr int kFp8InverseStride = 4;
enum class ScalesFrom {
  kUnset,    // scales that are 0 are set from amax
  kHistory,  // all scales are set from history
  // history = max(amax, decay · history) where amax is finite; then as kHistory. Has no effect if grad_scale is NaN.
  kStep,
};
struct Fp8Scales {
  ScalesFrom from = ScalesFrom::kHistory;
  Dtype format = Dtype::kE4M3;
  Tensor scale;       // (n) f32
  Tensor inverse;     // (n, kFp8InverseStride) f32, the first of each row is 1 / scale
  Tensor amax;        // (n) f32; not for kHistory
  Tensor history;     // (n) f32; not for kUnset
  Tensor grad_scale;  // (1) f32, kStep: the clipping factor
  float decay = 1.0f;
};
void check(const Fp8Scales&);

// out = counts, as floats that can be summed over ranks.
struct Fp8CountsToFloat {
  Tensor out;     // (n) f32
  Tensor counts;  // (n) i64
};
void check(const Fp8CountsToFloat&);

// Whether a GPU may accumulate with fewer bits (cuBLASLt's FAST_ACCUM), which is faster and less exact. The CPU
// accumulates in fp32.
enum class Fp8Accumulation { kFp32, kFast };

// out = inverse_a · inverse_b · (a · b^T) + beta · out + bias.  Both operands have the summed dimension innermost, the
// only form that GPUs of sm_90 support:
//   linear forward       out (R, N) = inp (R, K) · weight (N, K)
//   gradient of input    dinp (R, K) = dout (R, N) · weight_t (K, N)
//   gradient of weight   dweight (N, K) fp32 += dout_t (N, R) · inp_t (K, R)
// N and K are multiples of kFp8Multiple; at most one operand is E5M2.
inline constexpr int kFp8Multiple = 16;
struct Fp8Gemm {
  Tensor out;                   // (M, N) f32|bf16
  Tensor a;                     // (M, K) e4m3|e5m2
  Tensor b;                     // (N, K) e4m3|e5m2
  Tensor inverse_a, inverse_b;  // (1) f32, on GPUs at multiples of sixteen bytes
  float beta = 0.0f;
  Tensor bias;  // (N), optional; the dtype of out
  Fp8Accumulation accumulation = Fp8Accumulation::kFp32;
};
void check(const Fp8Gemm&);

}  // namespace tri
