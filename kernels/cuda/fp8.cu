// FP8 casts, transposes, scales: formulas in kernels/fp8.h.
//   inp (R, C) f32|bf16    out (R, C), out_t (C, R) e4m3|e5m2
// Mapping of casts: fp8_cast.cuh. Transposing bytes: one block per tile of 128 x 128, sixteen columns of four rows per
// thread. If a side of the tensor is not a multiple of a thread's share, or a pointer is not aligned, threads process
// single elements.
// Bound: memory; a cast to both orientations reads 2 bytes and writes 2.  Reference: kernels/cpu/fp8.cpp, bit for bit.
#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fp8_launch.cuh"
#include "kernels/cuda/fp8_slice.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

// Computes only amax.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) amax_kernel(Fp8Target target, const T* inp, int64_t runs) {
  Fp8Found found;
  if (target.used != nullptr) runs = min(runs, target.used_elements() / kVec);
#pragma unroll 2
  for (int64_t run = thread_index(); run < runs; run += int64_t{gridDim.x} * kThreads) {
    const Pack<T, kVec> from = load_pack<kVec>(inp + run * kVec);
#pragma unroll
    for (int i = 0; i < kVec; ++i) found.amax = max(found.amax, size_of(to_float(from.item[i])));
  }
  publish(found, target, false);
}

// Quantizes a flat slice: four elements per thread; each block of kBlock elements has one owner.
__global__ void __launch_bounds__(kThreads)
    cast_slice_kernel(SliceWeights quantized, const float* inp, const int32_t* block_tensor, int64_t n) {
  const int64_t first = thread_index() * 4;
  float w[4] = {};
  if (first < n) unpack(load_pack<4>(inp + first), w);
  encode_weights(quantized, first, first < n ? block_tensor[first / kBlock] : -1, w);
}

__global__ void __launch_bounds__(kThreads)
    transpose_kernel(uint8_t* out, const uint8_t* inp, int64_t rows, int64_t columns, const int32_t* used) {
  constexpr int kBytes = 16, kAcross = kTile / kBytes;
  __shared__ alignas(16) TransposeTile tile;
  const int64_t first_row = blockIdx.y * int64_t{kTile}, first_column = blockIdx.x * int64_t{kTile};
  const int column = static_cast<int>(threadIdx.x) % kAcross * kBytes, quad = static_cast<int>(threadIdx.x) / kAcross;
  static_assert(kThreads == kAcross * (kTile / kQuad));
  const int64_t r = first_row + quad * kQuad, c = first_column + column;
  if (used != nullptr && first_row >= *used) return;
  out += blockIdx.z * rows * columns;
  inp += blockIdx.z * rows * columns;
  if (r < rows && c < columns) {
    uint4 from[kQuad];
#pragma unroll
    for (int k = 0; k < kQuad; ++k) from[k] = *reinterpret_cast<const uint4*>(inp + (r + k) * columns + c);
    tile.put(column, quad, {from[0].x, from[1].x, from[2].x, from[3].x});
    tile.put(column + 4, quad, {from[0].y, from[1].y, from[2].y, from[3].y});
    tile.put(column + 8, quad, {from[0].z, from[1].z, from[2].z, from[3].z});
    tile.put(column + 12, quad, {from[0].w, from[1].w, from[2].w, from[3].w});
  }
  __syncthreads();
  tile.store(out, first_row, first_column, rows, columns, rows);
}

__global__ void __launch_bounds__(kThreads)
    transpose_elements_kernel(uint8_t* out, const uint8_t* inp, int64_t rows, int64_t columns) {
  const int64_t i = thread_index(), first = blockIdx.z * rows * columns;
  if (i < rows * columns) out[first + i % columns * rows + i / columns] = inp[first + i];
}

__device__ float scale_of(float amax, float most) {
  if (!(amax > 0.0f) || isinf(amax)) return 1.0f;
  int of_amax = 0, of_most = 0;
  const float amax_fraction = frexpf(amax, &of_amax), most_fraction = frexpf(most, &of_most);
  const int exponent = of_most - of_amax - (amax_fraction > most_fraction ? 1 : 0);
  return ldexpf(1.0f, min(max(exponent, -kFp8MostExponent), kFp8MostExponent));
}

__global__ void scales_kernel(ScalesFrom from, float most, float* scale, float* inverse, const float* amax,
                              float* history, const float* grad_scale, float decay, int64_t count) {
  const int64_t i = thread_index();
  if (i >= count || (from == ScalesFrom::kStep && isnan(*grad_scale))) return;
  if (from == ScalesFrom::kUnset && scale[i] != 0.0f) return;
  if (from == ScalesFrom::kStep && isfinite(amax[i])) history[i] = fmaxf(amax[i], decay * history[i]);
  scale[i] = scale_of(from == ScalesFrom::kUnset ? amax[i] : history[i], most);
  inverse[i * kFp8InverseStride] = 1.0f / scale[i];
}

__global__ void counts_to_float_kernel(float* out, const int64_t* counts, int64_t count) {
  const int64_t i = thread_index();
  if (i < count) out[i] = static_cast<float>(counts[i]);
}

}  // namespace

void fp8_cast(const Fp8Cast& c, CudaStream& stream) {
  if (c.inp.numel() == 0) return;
  dispatch(c.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool wide = reinterpret_cast<uintptr_t>(c.inp.data) % (kRun * sizeof(T)) == 0;
    launch_cast(ReadRows<T>{pointer<T>(c.inp), c.inp[1]}, wide, c, c.inp[0], c.inp[1], stream);
  });
  TRI_CUDA_LAUNCH("fp8_cast");
}

void fp8_cast_slice(const Fp8CastSlice& c, CudaStream& stream) {
  const int64_t n = c.inp.numel();
  if (n == 0) return;
  cast_slice_kernel<<<blocks_for(n / 4), kThreads, 0, stream>>>(slice_weights(c.quantized), pointer<float>(c.inp),
                                                                pointer<int32_t>(c.block_tensor), n);
  TRI_CUDA_LAUNCH("fp8_cast_slice");
}

void fp8_transpose(const Fp8Transpose& t, CudaStream& stream) {
  if (t.inp.numel() == 0) return;
  const int64_t rows = t.inp[t.inp.dims - 2], columns = t.inp[t.inp.dims - 1];
  const auto matrices = static_cast<unsigned>(t.inp.numel() / rows / columns);
  dim3 grid = tiles(rows, columns);
  grid.z = matrices;
  if (in_units(16, {rows, columns}, {t.out, t.inp}))
    transpose_kernel<<<grid, kThreads, 0, stream>>>(fp8_bytes(t.out), fp8_bytes(t.inp), rows, columns,
                                                    pointer<int32_t>(t.used));
  else
    transpose_elements_kernel<<<dim3(blocks_for(rows * columns), 1, matrices), kThreads, 0, stream>>>(
        fp8_bytes(t.out), fp8_bytes(t.inp), rows, columns);
  TRI_CUDA_LAUNCH("fp8_transpose");
}

void fp8_amax(const Fp8Amax& a, CudaStream& stream) {
  const int64_t count = a.inp.numel();
  if (count == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = (a.used.empty() ? count : a.inp[1]) % kVec == 0 && aligned<T>(0, {a.inp});
    const int64_t runs = packs ? count / kVec : count;
    auto kernel = packs ? amax_kernel<T, kVec> : amax_kernel<T, 1>;
    kernel<<<striding_blocks(runs, stream), kThreads, 0, stream>>>(
        {.amax = pointer<float>(a.amax), .elements = count, .used = pointer<int32_t>(a.used), .columns = a.inp[1]},
        pointer<T>(a.inp), runs);
  });
  TRI_CUDA_LAUNCH("fp8_amax");
}

void fp8_scales(const Fp8Scales& s, CudaStream& stream) {
  const int64_t count = s.scale.numel();
  if (count == 0) return;
  scales_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      s.from, fp8_format(s.format).limit / kFp8Headroom, pointer<float>(s.scale), pointer<float>(s.inverse),
      pointer<float>(s.amax), pointer<float>(s.history), pointer<float>(s.grad_scale), s.decay, count);
  TRI_CUDA_LAUNCH("fp8_scales");
}

void fp8_counts_to_float(const Fp8CountsToFloat& c, CudaStream& stream) {
  const int64_t count = c.counts.numel();
  if (count == 0) return;
  counts_to_float_kernel<<<blocks_for(count), kThreads, 0, stream>>>(pointer<float>(c.out), pointer<int64_t>(c.counts),
                                                                     count);
  TRI_CUDA_LAUNCH("fp8_counts_to_float");
}

}  // namespace tri::cuda
