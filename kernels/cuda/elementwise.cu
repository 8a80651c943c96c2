// cast and accumulate (kernels/elementwise.h), rope (kernels/rope.h), bias_backward (kernels/gemm.h).
// Mapping: a thread sixteen bytes where rows are aligned, else an element (rope: as many pairs); bias_backward: column
// sums in a fixed order.
// Bound: memory, each element once.  Mirrors: kernels/cpu/elementwise.cpp, rope.cpp, gemm.cpp.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;
unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ int64_t thread_index() { return blockIdx.x * int64_t{kThreads} + threadIdx.x; }

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

// qkv rows of `row` elements; a rotated head is a query or the key of a group. A thread turns kVec pairs.
template <class T, int kVec>
__global__ void rope_kernel(T* qkv, const float* table, int64_t rows, int row, int half, int seq_len, int heads,
                            int group, float sign) {
  const int per_head = half / kVec;
  const int64_t i = thread_index();
  if (i >= rows * heads * per_head) return;
  const int element = static_cast<int>(i % per_head) * kVec, head = static_cast<int>(i / per_head % heads);
  const int64_t r = i / per_head / heads;
  const int slot = head / (group + 1) * (group + 2) + head % (group + 1);
  T* at = qkv + r * row + slot * 2 * half + element;
  const float2* angles = reinterpret_cast<const float2*>(table) + r % seq_len * half + element;
  Pack<T, kVec> first = load_pack<kVec>(at), second = load_pack<kVec>(at + half);
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    const float2 angle = angles[k];
    const float sine = sign * angle.y, a = to_float(first.item[k]), b = to_float(second.item[k]);
    first.item[k] = from_float<T>(a * angle.x - b * sine);
    second.item[k] = from_float<T>(b * angle.x + a * sine);
  }
  store_pack(at, first);
  store_pack(at + half, second);
}

// Column sums, first pass: a block is 32 lanes of kVec columns each by 8 rows at a time, over every gridDim.y-th group
// of eight rows; reduce.cuh adds the blocks' sums.
template <class T, int kVec>
__global__ void column_slab_kernel(float* partial, const T* inp, int64_t rows, int64_t columns) {
  __shared__ float part[8][32 * kVec + 1];
  const int64_t c = (blockIdx.x * int64_t{32} + threadIdx.x) * kVec;
  float sums[kVec] = {};
  if (c < columns)
#pragma unroll 4
    for (int64_t r = blockIdx.y * int64_t{8} + threadIdx.y; r < rows; r += int64_t{8} * gridDim.y) {
      const Pack<T, kVec> pack = load_pack<kVec>(inp + r * columns + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i] += to_float(pack.item[i]);
    }
#pragma unroll
  for (int i = 0; i < kVec; ++i) part[threadIdx.y][i * 32 + threadIdx.x] = sums[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < kVec; i += 8) {
    float sum = 0;
#pragma unroll
    for (int y = 0; y < 8; ++y) sum += part[y][i * 32 + threadIdx.x];
    if (c + i < columns) partial[blockIdx.y * columns + c + i] = sum;
  }
}

template <class T, int kVec>
void sum_columns(const BiasBackward& b, cudaStream_t stream) {
  const int64_t rows = b.dout[0], columns = b.dout[1], groups = (columns + 32 * kVec - 1) / (32 * kVec);
  // Sixteen blocks a multiprocessor, so that the last ones cost little, if there are rows enough.
  const int64_t slabs = std::clamp<int64_t>(16 * num_multiprocessors() / groups, 1, (rows + 63) / 64);
  auto* partial = static_cast<float*>(
      workspace(stream, Scratch::kColumnSums, sizeof(float) * static_cast<size_t>(slabs * columns)));
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(slabs));
  column_slab_kernel<T, kVec><<<grid, dim3(32, 8), 0, stream>>>(partial, pointer<T>(b.dout), rows, columns);
  TRI_CUDA_LAUNCH("bias_backward");
  add_slabs<1>({{pointer<float>(b.dbias)}}, partial, columns, static_cast<int>(slabs), stream);
}

}  // namespace

void cast(const Cast& c, cudaStream_t stream) {
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

void accumulate(const Accumulate& a, cudaStream_t stream) {
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

void rope(const Rope& r, cudaStream_t stream) {
  const int half = static_cast<int>(r.table[1]), heads = r.num_kv_heads * (r.group + 1);
  const int64_t pairs = r.qkv[0] * heads * half;
  if (pairs == 0) return;
  dispatch(r.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(half, {r.qkv});
    auto kernel = packs ? rope_kernel<T, kVec> : rope_kernel<T, 1>;
    kernel<<<blocks_for(packs ? pairs / kVec : pairs), kThreads, 0, stream>>>(
        pointer<T>(r.qkv), pointer<float>(r.table), r.qkv[0], static_cast<int>(r.qkv[1]), half,
        static_cast<int>(r.table[0]), heads, r.group, r.pass == Pass::kForward ? 1.0f : -1.0f);
  });
  TRI_CUDA_LAUNCH("rope");
}

void bias_backward(const BiasBackward& b, cudaStream_t stream) {
  if (b.dout.numel() == 0) return;
  dispatch(b.dout.dtype, [&](auto type) {
    using T = decltype(type);
    aligned<T>(b.dout[1], {b.dout}) ? sum_columns<T, Pack<T>::kSize>(b, stream) : sum_columns<T, 1>(b, stream);
  });
}

}  // namespace tri::cuda
