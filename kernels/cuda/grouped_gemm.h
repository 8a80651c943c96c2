// The products of a mixture of experts, one per expert, of rows that are sorted by expert: rows [offsets[e],
// offsets[e + 1]) are expert e's. The offsets are read on the device; the host never learns them. Formulas:
// kernels/grouped_gemm.h.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/tensor.h"

namespace tri::cuda {

enum class GroupedForm {
  kForward,         // out (R, M) = rows (R, K) · weight[e] (M, K)^T
  kInputGradient,   // out (R, M) = rows (R, K) · weight[e] (K, M)
  kWeightGradient,  // out[e] (M, N) = rows (R, M)^T · inp (R, N) over the expert's rows, plus beta · out[e]
};

struct GroupedProduct {
  GroupedForm form = GroupedForm::kForward;
  Tensor out;        // (R, M) T, rows from offsets[E] on are not written; or (E, M, N) f32|T
  Tensor rows;       // (R, K) T, or (R, M) T
  Tensor other;      // weight (E, M, K) or (E, K, M) T; or inp (R, N) T
  Tensor offsets;    // (E + 1) i32
  bool add = false;  // kWeightGradient: adds to out

  int experts() const { return static_cast<int>(offsets[0]) - 1; }
};

// Whether Hopper's kernel computes it: bf16, all widths multiples of 8, addresses of 16 bytes, up to 512 experts.
bool hopper_grouped_gemm_takes(const GroupedProduct& product);
void hopper_grouped_gemm(const GroupedProduct& product, int multiprocessors, cudaStream_t stream);

}  // namespace tri::cuda
