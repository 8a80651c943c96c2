// Operations on FP8 tensors: one scale a tensor, a power of two, so that scaling is exact in both directions.
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
  Tensor amax;  // (1) f32, not negative
  Tensor inp;   // (R, C) f32|bf16
};
void check(const Fp8Amax&);

// What a cast counts. 64 bits: a rank's casts of one step can be more than 2^32 elements.
enum class Fp8Count { kElements, kSaturated, kUnderflowed };
inline constexpr int kNumFp8Counts = 3;

// out = fp8(inp · scale), in either orientation or both. Finite numbers beyond the format's range saturate; infinities
// and NaN become NaN, so that they are not hidden.
struct Fp8Cast {
  Tensor out;    // (R, C) e4m3|e5m2, optional
  Tensor out_t;  // (C, R) the transpose, optional
  Tensor inp;    // (R, C) f32|bf16
  Tensor scale;  // (1) f32
  Tensor amax;   // (1) f32, optional: as in Fp8Amax
  // (kNumFp8Counts) i64, optional, added to: elements; finite ones beyond the range; those that are not zero and whose
  // values are.
  Tensor counts;
  Tensor dbias;  // (C) f32, optional, added to in a fixed order: sums of inp over its rows

  Dtype format() const { return out.empty() ? out_t.dtype : out.dtype; }
};
void check(const Fp8Cast&);

// The quantized values of a slice of a flat buffer (kernels/optimizer.h): of each tensor with a scale of its own.
struct Fp8SliceWeights {
  Tensor out;     // (n) e4m3; absent: nothing is quantized
  Tensor slot;    // (S) i32: of each tensor, its place in what follows; tensors of other slices may have none, -1
  Tensor scale;   // (slots) f32
  Tensor amax;    // (slots) f32: as in Fp8Amax
  Tensor counts;  // (slots, kNumFp8Counts) i64: as in Fp8Cast
};
void check(const char* op, const Fp8SliceWeights& quantized, int64_t n);

// The quantized values of fp32 numbers; padding is left alone.
struct Fp8CastSlice {
  Fp8SliceWeights quantized;
  Tensor inp;           // (n) f32
  Tensor block_tensor;  // (n / kBlock) i32: the tensor that owns each block, -1: padding
};
void check(const Fp8CastSlice&);

// The norm of kernels/norm.h, rounded to the type of inp and cast at once: no number of it is kept.
struct Fp8NormForward {
  NormForward norm;  // without out
  Fp8Cast cast;      // without inp, which is (R, C); out alone, e4m3
};
void check(const Fp8NormForward&);

// The activation of kernels/activation.h, rounded to the type of inp and cast at once: no number of it is kept.
struct Fp8ActivationForward {
  Activation kind = Activation::kGelu;
  Tensor inp;    // (R, F) T, or (R, 2F) T for SwiGLU
  Fp8Cast cast;  // without inp, which is (R, F), and dbias
};
void check(const Fp8ActivationForward&);

// The same for its gradient.
struct Fp8ActivationBackward {
  Activation kind = Activation::kGelu;
  Tensor dout;   // (R, F) T
  Tensor inp;    // (R, F) T, or (R, 2F) T for SwiGLU
  Fp8Cast cast;  // without inp, which is like inp
};
void check(const Fp8ActivationBackward&);

// out = inp^T
struct Fp8Transpose {
  Tensor out;  // (C, R) e4m3|e5m2
  Tensor inp;  // (R, C) same type
};
void check(const Fp8Transpose&);

// Scales by the largest numbers that are to fit. The power of two s of amax is the largest with
//   amax · s <= limit / kFp8Headroom
// kept within 2^±kFp8MostExponent; 1 for an amax that is zero, infinite or NaN.
inline constexpr float kFp8Headroom = 2.0f;
inline constexpr int kFp8MostExponent = 60;
// cuBLASLt reads scales at multiples of sixteen bytes alone.
inline constexpr int kFp8InverseStride = 4;
enum class ScalesFrom {
  kUnset,    // scales that are 0 become those of amax
  kHistory,  // all scales become those of history
  kStep,     // history = max(amax, decay · history), where amax is finite; then as kHistory. Nothing happens where
             // grad_scale is NaN.
};
struct Fp8Scales {
  ScalesFrom from = ScalesFrom::kHistory;
  Dtype format = Dtype::kE4M3;
  Tensor scale;       // (n) f32
  Tensor inverse;     // (n, kFp8InverseStride) f32, the first of each row: 1 / scale
  Tensor amax;        // (n) f32; not for kHistory
  Tensor history;     // (n) f32; not for kUnset
  Tensor grad_scale;  // (1) f32, kStep: the clipping factor
  float decay = 1.0f;
};
void check(const Fp8Scales&);

// out = counts, as numbers that can be summed over ranks.
struct Fp8CountsToFloat {
  Tensor out;     // (n) f32
  Tensor counts;  // (n) i64
};
void check(const Fp8CountsToFloat&);

// Whether a GPU may add products with fewer bits (cuBLASLt's FAST_ACCUM): faster, less exact. The CPU adds in fp32.
enum class Fp8Accumulation { kFp32, kFast };

// out = inverse_a · inverse_b · (a · b^T) + beta · out + bias.  Both operands have the dimension that is summed over
// innermost, the one form that GPUs of sm_90 take:
//   linear forward       out (R, N) = inp (R, K) · weight (N, K)
//   gradient of input    dinp (R, K) = dout (R, N) · weight_t (K, N)
//   gradient of weight   dweight (N, K) fp32 += dout_t (N, R) · inp_t (K, R)
// N and K are multiples of kFp8Multiple; not both operands are E5M2.
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
