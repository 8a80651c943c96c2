// LayerNorm and RMSNorm of rows that norm_forward.cu and norm_backward.cu do not support: too wide for shared memory,
// or not made of whole 16-byte packs. Formulas in kernels/norm.h.
//   inp, add, out, dout, ... (R, C) bf16|f32    weight, bias (C)    mean, rstd (R) f32
// Mapping: one block per row at a time, each thread every kThreads-th pack. The row is read again, mostly from the
// caches, for each value that the next pass needs: the mean, the variance, the output. Backward: each block accumulates
// its parameter gradients in scratch over its rows, each thread its own columns, and a second kernel adds the blocks'
// sums in a fixed order.
// Limits: none.  Bound: memory; R·C elements are moved as often as in norm_forward.cu and norm_backward.cu.
// Reference: kernels/cpu/norm.cpp.
#include "kernels/cuda/fp8_norm.cuh"

namespace tri::cuda::norm {
namespace {

constexpr int kWideThreads = 512;
constexpr int kWideWarps = kWideThreads / 32;

// Calls f(first column of the pack) for this thread's packs of a row.
template <int kVec, class F>
__device__ __forceinline__ void for_each_pack(int width, F f) {
  for (int c = static_cast<int>(threadIdx.x) * kVec; c < width; c += kWideThreads * kVec) f(c);
}

template <int kVec, class T>
__device__ __forceinline__ void load(const T* at, float (&x)[kVec]) {
  unpack(load_pack<kVec>(at), x);
}

template <class T, int kVec, class Rows>
__global__ void __launch_bounds__(kWideThreads) wide_forward_kernel(Forward<T> a, Rows given, Shape s) {
  Rows normed = given;
  normed.begin();
  __shared__ float reduce[kWideWarps];
  const int64_t row = blockIdx.x, begin = row * s.width;
  const float mean_factor = 1.0f / static_cast<float>(s.width);
  const bool adds = a.add != nullptr;
  const T* rows = adds ? a.sum : a.inp;  // the normalised input; each thread reads only what it wrote
  float total = 0;
  for_each_pack<kVec>(s.width, [&](int c) {
    float x[kVec];
    load(a.inp + begin + c, x);
    if (adds) {
      float y[kVec];
      load(a.add + begin + c, y);
      if (a.more_adds.count > 0) add_parts(a.more_adds, begin + c, y);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] += y[i];
      if (a.add_bias != nullptr) {
        load(a.add_bias + c, y);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[i] += y[i];
      }
      const Pack<T, kVec> sum = pack_floats<T>(x);
      store_pack(a.sum + begin + c, sum);
      unpack(sum, x);  // as backward will read it
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) total += x[i];
  });
  const float mean = a.mean == nullptr ? 0.0f : block_sum<kWideThreads>(total, reduce) * mean_factor;
  float square = 0;
  for_each_pack<kVec>(s.width, [&](int c) {
    float x[kVec];
    load(rows + begin + c, x);
#pragma unroll
    for (int i = 0; i < kVec; ++i) square += (x[i] - mean) * (x[i] - mean);
  });
  const float rstd = rsqrtf(block_sum<kWideThreads>(square, reduce) * mean_factor + a.eps);
  for_each_pack<kVec>(s.width, [&](int c) {
    float x[kVec], y[kVec];
    load(rows + begin + c, x);
    load(a.weight + c, y);
    add_offset(y, a.offset);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = (x[i] - mean) * (rstd * y[i]);
    if (a.bias != nullptr) {
      load(a.bias + c, y);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] += y[i];
    }
    normed.put(begin + c, x);
  });
  normed.end();
  if (threadIdx.x != 0) return;
  if (a.mean != nullptr) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <class T, int kVec>
__global__ void __launch_bounds__(kWideThreads) wide_backward_kernel(Backward<T> a, Shape s) {
  __shared__ float reduce[kWideWarps];
  const float mean_factor = 1.0f / static_cast<float>(s.width);
  float* const dweight = a.partial + int64_t{blockIdx.x} * 2 * s.width;  // (C), followed by dbias (C)
  float* const dbias = dweight + s.width;
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const int64_t begin = row * s.width;
    const bool first = row == blockIdx.x;
    const float rstd = a.rstd[row], shift = a.mean == nullptr ? 0.0f : -a.mean[row] * rstd;
    // x = (inp - mean) · rstd, the normalised input;  g = dout · weight
    const auto load_row = [&](int c, float(&x)[kVec], float(&dy)[kVec], float(&weight)[kVec]) {
      load(a.inp + begin + c, x);
      load(a.dout + begin + c, dy);
      if (a.more_douts.count > 0) add_parts(a.more_douts, begin + c, dy);
      load(a.weight + c, weight);
      add_offset(weight, a.offset);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] = fmaf(x[i], rstd, shift);
    };
    float sum = 0, scaled_sum = 0;  // of g and of g · x
    for_each_pack<kVec>(s.width, [&](int c) {
      float x[kVec], dy[kVec], weight[kVec];
      load_row(c, x, dy, weight);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float g = dy[i] * weight[i];
        sum += g;
        scaled_sum += g * x[i];
        dweight[c + i] = first ? dy[i] * x[i] : dweight[c + i] + dy[i] * x[i];
        dbias[c + i] = first ? dy[i] : dbias[c + i] + dy[i];
      }
    });
    sum = block_sum<kWideThreads>(sum, reduce);
    scaled_sum = block_sum<kWideThreads>(scaled_sum, reduce);
    // dinp = rstd · (g - mean(g) - x · mean(g · x))
    const float offset = a.mean == nullptr ? 0.0f : -rstd * sum * mean_factor;
    const float slope = -rstd * scaled_sum * mean_factor;
    for_each_pack<kVec>(s.width, [&](int c) {
      float x[kVec], dy[kVec], weight[kVec];
      load_row(c, x, dy, weight);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] = fmaf(dy[i] * weight[i], rstd, fmaf(x[i], slope, offset));
      if (a.dresidual != nullptr) {
        float other[kVec];
        load(a.dresidual + begin + c, other);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[i] += other[i];
      }
      store_pack(a.dinp + begin + c, pack_floats<T>(x));
    });
  }
}

template <class T, int kVec, class Rows>
void forward(const NormForward& n, const Rows& rows, CudaStream& stream) {
  const Shape shape = shape_of(n);
  wide_forward_kernel<T, kVec>
      <<<static_cast<unsigned>(shape.rows), kWideThreads, 0, stream>>>(forward_args<T>(n), rows, shape);
  TRI_CUDA_LAUNCH("norm_forward");
}

template <class T, int kVec>
void backward(const NormBackward& n, CudaStream& stream) {
  const Shape shape = shape_of(n);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(shape.rows, int64_t{2} * num_multiprocessors(stream)));
  float* partial = column_partials(shape, blocks, stream);
  wide_backward_kernel<T, kVec><<<blocks, kWideThreads, 0, stream>>>(backward_args<T>(n, partial), shape);
  TRI_CUDA_LAUNCH("norm_backward");
  add_column_partials(n, partial, blocks, stream);
}

}  // namespace

void wide_forward(const NormForward& n, CudaStream& stream) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const StoredRows<T> rows{pointer<T>(n.out)};
    in_packs<T>(n) ? forward<T, Pack<T>::kSize>(n, rows, stream) : forward<T, 1>(n, rows, stream);
  });
}

void wide_forward(const Fp8NormForward& n, CudaStream& stream) {
  dispatch(n.norm.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const CastRows<T> rows = cast_rows<T>(n);
    const bool packs = in_packs<T>(n.norm) && reinterpret_cast<uintptr_t>(n.cast.out.data) % 8 == 0;
    packs ? forward<T, Pack<T>::kSize>(n.norm, rows, stream) : forward<T, 1>(n.norm, rows, stream);
  });
}

void wide_backward(const NormBackward& n, CudaStream& stream) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    in_packs<T>(n) ? backward<T, Pack<T>::kSize>(n, stream) : backward<T, 1>(n, stream);
  });
}

}  // namespace tri::cuda::norm
