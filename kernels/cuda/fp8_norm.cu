// LayerNorm and RMSNorm whose rows are cast to FP8 as they are computed: formulas in kernels/norm.h, fp8.h.
//   inp, add, sum (R, C) bf16|f32    out (R, C) e4m3
// Mapping: norm.cuh; each thread casts its packs.  Bound: memory; 3 bytes per element of bf16, 7 with a residual.
// Limits: none. norm_wide.cu processes rows that are not in packs, too wide for shared memory, or so many that a
// thread's counts could overflow.
// Reference: kernels/cpu/fp8.cpp. The quantized values equal those of fp8_cast after norm_forward.cu, bit for bit.
#include "kernels/cuda/fp8_norm.cuh"
#include "kernels/cuda/norm_forward.cuh"

namespace tri::cuda {

void fp8_norm_forward(const Fp8NormForward& n, CudaStream& stream) {
  if (n.norm.inp.numel() == 0) return;
  dispatch(n.norm.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = norm::in_packs<T>(n.norm) && reinterpret_cast<uintptr_t>(n.cast.out.data) % 8 == 0;
    if (!packs || !norm::forward<T>(n.norm, norm::cast_rows<T>(n), stream)) norm::wide_forward(n, stream);
  });
}

}  // namespace tri::cuda
