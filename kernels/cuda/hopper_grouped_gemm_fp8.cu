// Grouped GEMMs of FP8 on Hopper: hopper_grouped_gemm.cuh.
#include "kernels/cuda/hopper_grouped_gemm.cuh"

namespace tri::cuda {
namespace grouped {
namespace {

// Calls launch<Kind> with the types of the operands of M and N.
template <bool kRows, Sums kSums>
void launch_of_types(Dtype of_m, Dtype of_n, const CUtensorMap& m_map, const CUtensorMap& n_map,
                     const CUtensorMap& out_map, const Tensor& out, const Work& work, CudaStream& stream) {
  if (of_m == Dtype::kE4M3 && of_n == Dtype::kE4M3)
    return launch<Kind<kRows, Fp8<E4M3, E4M3>, kSums>>(m_map, n_map, out_map, out, work, stream);
  // Rows are of N, transposed rows of M.
  using Gradients = std::conditional_t<kRows, Fp8<E4M3, E5M2>, Fp8<E5M2, E4M3>>;
  TRI_REQUIRE((kRows ? of_m : of_n) == Dtype::kE4M3, "a grouped GEMM of two gradients");
  launch<Kind<kRows, Gradients, kSums>>(m_map, n_map, out_map, out, work, stream);
}

template <Sums kSums>
void product(const GroupedProduct& p, CudaStream& stream) {
  Work work = work_of(p, stream);
  const int64_t E = work.experts;
  if (p.form == GroupedForm::kWeightGradient) {  // rows (M, P), other (N, P)
    const int64_t P = p.rows[1];
    work.n = static_cast<int>(p.other[0]);
    work.inverse_m = static_cast<const float*>(p.inverse_rows.data);
    work.inverse_n = static_cast<const float*>(p.inverse_other.data);
    return launch_of_types<false, kSums>(p.rows.dtype, p.other.dtype, map_of(p.rows, 1, work.m, P, kM),
                                         map_of(p.other, 1, work.n, P, 64),
                                         map_of(p.out, E, work.m, work.n, kGradientRows), p.out, work, stream);
  }
  work.k = static_cast<int>(p.rows[1]);
  work.inverse_m = static_cast<const float*>(p.inverse_other.data);
  work.inverse_n = static_cast<const float*>(p.inverse_rows.data);
  launch_of_types<true, kSums>(p.other.dtype, p.rows.dtype, map_of(p.other, E, work.m, work.k, kM),
                               map_of(p.rows, 1, p.rows[0], work.k, 32), map_of(p.out, 1, p.rows[0], work.m, 64), p.out,
                               work, stream);
}

}  // namespace
}  // namespace grouped

void hopper_grouped_gemm_fp8(const GroupedProduct& p, CudaStream& stream) {
  TRI_REQUIRE(p.form != GroupedForm::kInputGradient, "FP8: the input gradient reads transposed weights");
  if (p.fast)
    grouped::product<grouped::Sums::kTensorCores>(p, stream);
  else
    grouped::product<grouped::Sums::kFp32>(p, stream);
}

}  // namespace tri::cuda
