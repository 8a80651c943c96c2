// Residual addition and LayerNorm or RMSNorm: kernels/cuda/norm.cuh. R·C elements are moved 2 times (4 with a
// residual), and once more for each further part of an operand.
#include "kernels/cuda/norm_forward.cuh"

namespace tri::cuda {

void norm_forward(const NormForward& n, CudaStream& stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const norm::StoredRows<T> rows{pointer<T>(n.out)};
    if (!norm::in_packs<T>(n) || !norm::forward<T>(n, rows, stream)) norm::wide_forward(n, stream);
  });
}

}  // namespace tri::cuda
