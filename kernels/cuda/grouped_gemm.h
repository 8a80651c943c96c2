// The products of a mixture of experts in the form that the kernels share. Formulas: kernels/grouped_gemm.h.
#pragma once

#include "kernels/core/tensor.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

enum class GroupedForm {
  kForward,         // out (P, M) = rows (P, K) · other[e] (M, K)^T
  kInputGradient,   // out (P, M) = rows (P, K) · other[e] (K, M)
  kWeightGradient,  // out[e] (M, N) = rows (P, M)^T · other (P, N) over the expert's rows
};
// With FP8 operands there is no kInputGradient, and the weight gradient reads transposed rows (M, P) and other (N, P).

struct GroupedProduct {
  GroupedForm form = GroupedForm::kForward;
  Tensor out;        // T; of the weight gradient f32
  Tensor rows;       // T, or FP8
  Tensor other;      // T, or FP8
  Tensor offsets;    // (E + 1) i32
  bool add = false;  // weight gradient: adds to out
  // FP8: the operands' factors (1) f32, and whether tensor cores may add the sums.
  Tensor inverse_rows = {}, inverse_other = {};
  bool fast = false;

  int experts() const { return static_cast<int>(offsets[0]) - 1; }
};

// Whether Hopper's kernel (hopper_grouped_gemm.cuh) takes the operands: bf16 or FP8, widths and addresses of whole
// 16-byte vectors, up to 512 experts. A build without code for sm_90a has no_hopper.cpp instead.
bool hopper_grouped_gemm_takes(const GroupedProduct& product);
void hopper_grouped_gemm(const GroupedProduct& product, CudaStream& stream);
void hopper_grouped_gemm_fp8(const GroupedProduct& product, CudaStream& stream);

}  // namespace tri::cuda
