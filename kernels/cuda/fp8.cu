// FP8 casts, transposes, scales: formulas in kernels/fp8.h.
//   inp (R, C) f32|bf16    out (R, C), out_t (C, R) e4m3|e5m2
// Mapping of casts and transposes: a block of 256 threads a tile of 64 x 64. A thread takes runs of eight elements of a
// row; the codes go through shared memory, from which runs of eight of a column are written. Where a side of the tensor
// is no multiple of eight, or a pointer is not aligned, single elements. A cast in one orientation goes by flat runs.
// amax and counts: sums of a warp, then of a block, then one atomic of integers each, whose order does not matter: a
// float that is not negative is ordered as its bits are.
// Bound: memory; a cast to both orientations reads 2 bytes and writes 2.  Mirror: kernels/cpu/fp8.cpp, bit for bit.
#include "kernels/fp8.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

constexpr int kTile = 64, kRun = 8;

// What a thread has found of amax and counts.
struct Found {
  uint32_t amax = 0, elements = 0, saturated = 0, underflowed = 0;
};

__device__ __forceinline__ uint32_t size_of(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

// x · 0 is NaN where x is not finite, and zero elsewhere, of the sign that leaves the product as it is.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint8_t encode(float x, float scale, Found& found) {
  constexpr float kLimit = kFormat == __NV_E4M3 ? 448.0f : 57344.0f;
  const float scaled = fmaf(x, 0.0f, x * scale);
  const uint8_t code = scaled != scaled ? 0x7F : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, kFormat);
  found.amax = max(found.amax, size_of(x));
  ++found.elements;
  found.saturated += fabsf(scaled) > kLimit;
  found.underflowed += x != 0.0f && (code & 0x7F) == 0;
  return code;
}

__device__ __forceinline__ uint32_t warp_sum(uint32_t value) { return __reduce_add_sync(0xFFFFFFFFu, value); }

// Of all threads of a block of kThreads.
__device__ void publish(const Found& found, float* amax, int32_t* counts) {
  __shared__ uint32_t of_warp[4][kThreads / 32];
  const int warp = threadIdx.x / 32;
  const uint32_t values[4] = {__reduce_max_sync(0xFFFFFFFFu, found.amax), warp_sum(found.elements),
                              warp_sum(found.saturated), warp_sum(found.underflowed)};
  if (threadIdx.x % 32 == 0)
    for (int k = 0; k < 4; ++k) of_warp[k][warp] = values[k];
  __syncthreads();
  if (threadIdx.x >= 4) return;
  const int k = static_cast<int>(threadIdx.x);
  uint32_t total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total = k == 0 ? max(total, of_warp[k][w]) : total + of_warp[k][w];
  if (k == 0 && amax != nullptr) atomicMax(reinterpret_cast<unsigned*>(amax), total);
  if (k > 0 && counts != nullptr && total != 0) atomicAdd(reinterpret_cast<unsigned*>(counts) + k - 1, total);
}

// One orientation: blocks stride over runs of kVec elements.
template <class T, __nv_fp8_interpretation_t kFormat, int kVec>
__global__ void __launch_bounds__(kThreads)
    cast_flat_kernel(uint8_t* out, const T* inp, const float* scale, float* amax, int32_t* counts, int64_t runs) {
  Found found;
  const float factor = *scale;
  for (int64_t run = thread_index(); run < runs; run += int64_t{gridDim.x} * kThreads) {
    const Pack<T, kVec> from = load_pack<kVec>(inp + run * kVec);
    Pack<uint8_t, kVec> to;
#pragma unroll
    for (int i = 0; i < kVec; ++i) to.item[i] = encode<kFormat>(to_float(from.item[i]), factor, found);
    store_pack(out + run * kVec, to);
  }
  publish(found, amax, counts);
}

// The largest number alone.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) amax_kernel(float* amax, const T* inp, int64_t runs) {
  Found found;
  for (int64_t run = thread_index(); run < runs; run += int64_t{gridDim.x} * kThreads) {
    const Pack<T, kVec> from = load_pack<kVec>(inp + run * kVec);
#pragma unroll
    for (int i = 0; i < kVec; ++i) found.amax = max(found.amax, size_of(to_float(from.item[i])));
  }
  publish(found, amax, nullptr);
}

// Both orientations, or the transpose alone (out null). kVec: kRun, or 1 where runs do not fit.
// tile[c][r], its rows padded so that the eight writes of a run fall into different banks.
template <class T, __nv_fp8_interpretation_t kFormat, int kVec>
__global__ void __launch_bounds__(kThreads)
    cast_transpose_kernel(uint8_t* out, uint8_t* out_t, const T* inp, const float* scale, float* amax, int32_t* counts,
                          int64_t rows, int64_t columns) {
  __shared__ alignas(16) uint8_t tile[kTile][kTile + kRun];
  const int64_t first_row = blockIdx.y * int64_t{kTile}, first_column = blockIdx.x * int64_t{kTile};
  constexpr int kAcross = kTile / kVec;
  Found found;
  const float factor = *scale;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAcross; i += kThreads) {
    const int r = i / kAcross, c = i % kAcross * kVec;
    if (first_row + r >= rows || first_column + c >= columns) continue;
    const int64_t at = (first_row + r) * columns + first_column + c;
    const Pack<T, kVec> from = load_pack<kVec>(inp + at);
    Pack<uint8_t, kVec> to;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      to.item[k] = encode<kFormat>(to_float(from.item[k]), factor, found);
      tile[c + k][r] = to.item[k];
    }
    if (out != nullptr) store_pack(out + at, to);
  }
  __syncthreads();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAcross; i += kThreads) {
    const int c = i / kAcross, r = i % kAcross * kVec;
    if (first_row + r >= rows || first_column + c >= columns) continue;
    store_pack(out_t + (first_column + c) * rows + first_row + r, load_pack<kVec>(&tile[c][r]));
  }
  if (amax != nullptr || counts != nullptr) publish(found, amax, counts);
}

template <int kVec>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(uint8_t* out, const uint8_t* inp, int64_t rows, int64_t columns) {
  __shared__ alignas(16) uint8_t tile[kTile][kTile + kRun];
  const int64_t first_row = blockIdx.y * int64_t{kTile}, first_column = blockIdx.x * int64_t{kTile};
  constexpr int kAcross = kTile / kVec;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAcross; i += kThreads) {
    const int r = i / kAcross, c = i % kAcross * kVec;
    if (first_row + r >= rows || first_column + c >= columns) continue;
    const auto from = load_pack<kVec>(inp + (first_row + r) * columns + first_column + c);
#pragma unroll
    for (int k = 0; k < kVec; ++k) tile[c + k][r] = from.item[k];
  }
  __syncthreads();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAcross; i += kThreads) {
    const int c = i / kAcross, r = i % kAcross * kVec;
    if (first_row + r >= rows || first_column + c >= columns) continue;
    store_pack(out + (first_column + c) * rows + first_row + r, load_pack<kVec>(&tile[c][r]));
  }
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
  inverse[i] = 1.0f / scale[i];
}

__global__ void counts_to_float_kernel(float* out, const uint32_t* counts, int64_t count) {
  const int64_t i = thread_index();
  if (i < count) out[i] = static_cast<float>(counts[i]);
}

// Blocks that stride over all runs: a few a multiprocessor, so that there are few atomics.
unsigned striding_blocks(int64_t runs, CudaStream& stream) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((runs + kThreads - 1) / kThreads, 1, int64_t{16} * num_multiprocessors(stream)));
}

dim3 tiles(int64_t rows, int64_t columns) {
  return {static_cast<unsigned>((columns + kTile - 1) / kTile), static_cast<unsigned>((rows + kTile - 1) / kTile)};
}

uint8_t* codes(const Tensor& tensor) { return static_cast<uint8_t*>(tensor.data); }

// Whether the tensors of bytes can be read and written eight at a time along `extents`.
bool in_runs(std::initializer_list<int64_t> extents, std::initializer_list<Tensor> tensors) {
  uintptr_t bits = 0;
  for (const int64_t extent : extents) bits |= static_cast<uintptr_t>(extent);
  for (const Tensor& tensor : tensors) bits |= reinterpret_cast<uintptr_t>(tensor.data);
  return bits % kRun == 0;
}

template <class T, __nv_fp8_interpretation_t kFormat>
void cast_as(const Fp8Cast& c, CudaStream& stream) {
  const int64_t rows = c.inp[0], columns = c.inp[1], count = rows * columns;
  float* amax = pointer<float>(c.amax);
  int32_t* counts = pointer<int32_t>(c.counts);
  const float* scale = pointer<float>(c.scale);
  const bool wide_inp = reinterpret_cast<uintptr_t>(c.inp.data) % (kRun * sizeof(T)) == 0;
  if (c.out_t.empty()) {
    const bool runs = wide_inp && in_runs({count}, {c.out});
    auto kernel = runs ? cast_flat_kernel<T, kFormat, kRun> : cast_flat_kernel<T, kFormat, 1>;
    const int64_t number = runs ? count / kRun : count;
    kernel<<<striding_blocks(number, stream), kThreads, 0, stream>>>(codes(c.out), pointer<T>(c.inp), scale, amax,
                                                                     counts, number);
  } else {
    const bool runs = wide_inp && in_runs({rows, columns}, {c.out, c.out_t});
    auto kernel = runs ? cast_transpose_kernel<T, kFormat, kRun> : cast_transpose_kernel<T, kFormat, 1>;
    kernel<<<tiles(rows, columns), kThreads, 0, stream>>>(codes(c.out), codes(c.out_t), pointer<T>(c.inp), scale, amax,
                                                          counts, rows, columns);
  }
  TRI_CUDA_LAUNCH("fp8_cast");
}

}  // namespace

void fp8_cast(const Fp8Cast& c, CudaStream& stream) {
  if (c.inp.numel() == 0) return;
  const Dtype format = c.out.empty() ? c.out_t.dtype : c.out.dtype;
  dispatch(c.inp.dtype, [&](auto type) {
    using T = decltype(type);
    format == Dtype::kE4M3 ? cast_as<T, __NV_E4M3>(c, stream) : cast_as<T, __NV_E5M2>(c, stream);
  });
}

void fp8_transpose(const Fp8Transpose& t, CudaStream& stream) {
  if (t.inp.numel() == 0) return;
  const int64_t rows = t.inp[0], columns = t.inp[1];
  auto kernel = in_runs({rows, columns}, {t.out, t.inp}) ? transpose_kernel<kRun> : transpose_kernel<1>;
  kernel<<<tiles(rows, columns), kThreads, 0, stream>>>(codes(t.out), codes(t.inp), rows, columns);
  TRI_CUDA_LAUNCH("fp8_transpose");
}

void fp8_amax(const Fp8Amax& a, CudaStream& stream) {
  const int64_t count = a.inp.numel();
  if (count == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = count % kVec == 0 && aligned<T>(0, {a.inp});
    const int64_t runs = packs ? count / kVec : count;
    auto kernel = packs ? amax_kernel<T, kVec> : amax_kernel<T, 1>;
    kernel<<<striding_blocks(runs, stream), kThreads, 0, stream>>>(pointer<float>(a.amax), pointer<T>(a.inp), runs);
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
  counts_to_float_kernel<<<blocks_for(count), kThreads, 0, stream>>>(pointer<float>(c.out), pointer<uint32_t>(c.counts),
                                                                     count);
  TRI_CUDA_LAUNCH("fp8_counts_to_float");
}

}  // namespace tri::cuda
