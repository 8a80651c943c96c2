// Grouped GEMMs of bf16 on Hopper: hopper_grouped_gemm.cuh.
#include "kernels/cuda/hopper_grouped_gemm.cuh"

namespace tri::cuda {

bool hopper_grouped_gemm_takes(const GroupedProduct& p) {
  int64_t bits = 0;
  for (const Tensor& tensor : {p.out, p.rows, p.other})
    bits |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data)) |
            tensor[tensor.dims - 1] * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  const bool types = is_fp8(p.rows.dtype) ? p.form == GroupedForm::kWeightGradient || p.out.dtype == Dtype::kBF16
                                          : p.rows.dtype == Dtype::kBF16;
  return types && bits % 16 == 0 && p.experts() <= grouped::kMaxExperts;
}

void hopper_grouped_gemm(const GroupedProduct& p, CudaStream& stream) {
  using namespace grouped;
  if (is_fp8(p.rows.dtype)) return hopper_grouped_gemm_fp8(p, stream);
  Work work = work_of(p, stream);
  const int64_t E = work.experts, R = p.rows[0];
  if (p.form == GroupedForm::kWeightGradient) {
    using Gradient = Kind<false, Bf16<1, 1>>;
    work.n = static_cast<int>(p.other[1]);
    return launch<Gradient>(map_of(p.rows, 1, R, work.m, 64), map_of(p.other, 1, R, work.n, 64),
                            map_of(p.out, E, work.m, work.n, kGradientRows), p.out, work, stream);
  }
  work.k = static_cast<int>(p.rows[1]);
  const CUtensorMap rows = map_of(p.rows, 1, R, work.k, 32), out = map_of(p.out, 1, R, work.m, 64);
  if (p.form == GroupedForm::kForward)
    launch<Kind<true, Bf16<0, 0>>>(map_of(p.other, E, work.m, work.k, kM), rows, out, p.out, work, stream);
  else
    launch<Kind<true, Bf16<1, 0>>>(map_of(p.other, E, work.k, work.m, 64), rows, out, p.out, work, stream);
}

}  // namespace tri::cuda
