// cast and accumulate: formulas in kernels/elementwise.h.
// Mapping: one thread per sixteen bytes if the tensors are aligned, otherwise per element.
// Bound: memory, each element once.  Reference: kernels/cpu/elementwise.cpp.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

template <class Out, class Inp, int kVec>
__global__ void cast_kernel(Out* out, const Inp* inp, int64_t count) {
  const int64_t i = thread_index() * kVec;
  if (i >= count) return;
  const Pack<Inp, kVec> from = load_pack<kVec>(inp + i);
  Pack<Out, kVec> to;
#pragma unroll
  for (int k = 0; k < kVec; ++k) to.item[k] = from_float<Out>(to_float(from.item[k]));
  store_pack(out + i, to);
}

template <class T, int kVec>
__global__ void accumulate_kernel(T* inout, const T* inp, int64_t count) {
  const int64_t i = thread_index() * kVec;
  if (i >= count) return;
  Pack<T, kVec> sum = load_pack<kVec>(inout + i);
  const Pack<T, kVec> add = load_pack<kVec>(inp + i);
#pragma unroll
  for (int k = 0; k < kVec; ++k) sum.item[k] = from_float<T>(to_float(sum.item[k]) + to_float(add.item[k]));
  store_pack(inout + i, sum);
}

}  // namespace

void cast(const Cast& c, CudaStream& stream) {
  const int64_t count = c.out.numel();
  if (count == 0) return;
  dispatch(c.out.dtype, [&](auto out_type) {
    dispatch(c.inp.dtype, [&](auto inp_type) {
      using Out = decltype(out_type);
      using Inp = decltype(inp_type);
      constexpr int kVec = 16 / std::max(sizeof(Out), sizeof(Inp));
      const bool packs = count % kVec == 0 && aligned<Out>(0, {c.out, c.inp});
      auto kernel = packs ? cast_kernel<Out, Inp, kVec> : cast_kernel<Out, Inp, 1>;
      kernel<<<blocks_for(packs ? count / kVec : count), kThreads, 0, stream>>>(pointer<Out>(c.out),
                                                                                pointer<Inp>(c.inp), count);
    });
  });
  TRI_CUDA_LAUNCH("cast");
}

void accumulate(const Accumulate& a, CudaStream& stream) {
  const int64_t count = a.inout.numel();
  if (count == 0) return;
  dispatch(a.inout.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = count % kVec == 0 && aligned<T>(0, {a.inout, a.inp});
    auto kernel = packs ? accumulate_kernel<T, kVec> : accumulate_kernel<T, 1>;
    kernel<<<blocks_for(packs ? count / kVec : count), kThreads, 0, stream>>>(pointer<T>(a.inout), pointer<T>(a.inp),
                                                                              count);
  });
  TRI_CUDA_LAUNCH("accumulate");
}

}  // namespace tri::cuda
