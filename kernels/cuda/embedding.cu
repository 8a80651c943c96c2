// Token and position embeddings, forward and deterministic backward: formulas in kernels/embedding.h.
// Forward: a thread sixteen bytes where rows are aligned, else an element. Token gradients: rows are sorted by token
// (stable radix sort), then one block a run of equal tokens adds its rows in ascending order: no atomics, the same bits
// every time. Position gradients: a thread an element of the table adds its rows in ascending order. Bound: memory, R·C
// elements read and written.  Mirror: kernels/cpu/embedding.cpp.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;
unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ int64_t thread_index() { return blockIdx.x * int64_t{kThreads} + threadIdx.x; }

template <class T, int kVec>
__global__ void embedding_kernel(T* out, const int32_t* tokens, const T* weight, int64_t packs, int64_t width,
                                 int64_t local, int first_token) {
  const int64_t at = thread_index() * kVec;
  if (thread_index() >= packs) return;
  const int64_t row = tokens[at / width] - first_token;
  Pack<T, kVec> pack;
  if (row >= 0 && row < local) {
    pack = load_pack<kVec>(weight + row * width + at % width);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) pack.item[i] = from_float<T>(0.0f);
  }
  store_pack(out + at, pack);
}

__global__ void number_rows(int32_t* rows, int64_t count) {
  if (const int64_t i = thread_index(); i < count) rows[i] = static_cast<int32_t>(i);
}

// Block i works if a run of equal tokens begins at sorted position i.
template <class T>
__global__ void add_runs(float* dweight, const T* dout, const int32_t* tokens, const int32_t* rows, int64_t count,
                         int64_t width, int64_t local, int first_token) {
  const int64_t begin = blockIdx.x;
  const int32_t token = tokens[begin];
  const int64_t row = token - first_token;
  if (row < 0 || row >= local || (begin > 0 && tokens[begin - 1] == token)) return;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    float sum = dweight[row * width + c];
    for (int64_t i = begin; i < count && tokens[i] == token; ++i) sum += to_float(dout[rows[i] * width + c]);
    dweight[row * width + c] = sum;
  }
}

template <class T, int kVec>
__global__ void position_kernel(T* inout, const T* weight, int64_t packs, int64_t width, int64_t seq_len,
                                int64_t first_row) {
  const int64_t at = thread_index() * kVec;
  if (thread_index() >= packs) return;
  const int64_t position = (first_row + at / width) % seq_len;
  Pack<T, kVec> sum = load_pack<kVec>(inout + at);
  const Pack<T, kVec> add = load_pack<kVec>(weight + position * width + at % width);
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum.item[i] = from_float<T>(to_float(sum.item[i]) + to_float(add.item[i]));
  store_pack(inout + at, sum);
}

template <class T>
__global__ void position_gradient_kernel(float* dweight, const T* dout, int64_t rows, int64_t width, int64_t seq_len,
                                         int64_t first_row) {
  const int64_t i = thread_index();
  if (i >= seq_len * width) return;
  const int64_t position = i / width;
  float sum = dweight[i];
  for (int64_t r = (position + seq_len - first_row % seq_len) % seq_len; r < rows; r += seq_len)
    sum += to_float(dout[r * width + i % width]);
  dweight[i] = sum;
}

}  // namespace

void embedding_forward(const EmbeddingForward& e, cudaStream_t stream) {
  if (e.out.numel() == 0) return;
  dispatch(e.out.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vector = aligned<T>(e.out[1], {e.out, e.weight});
    const int64_t packs = vector ? e.out.numel() / Pack<T>::kSize : e.out.numel();
    auto kernel = vector ? embedding_kernel<T, Pack<T>::kSize> : embedding_kernel<T, 1>;
    kernel<<<blocks_for(packs), kThreads, 0, stream>>>(pointer<T>(e.out), pointer<int32_t>(e.tokens),
                                                       pointer<T>(e.weight), packs, e.out[1], e.weight[0],
                                                       e.first_token);
  });
  TRI_CUDA_LAUNCH("embedding_forward");
}

void embedding_backward(const EmbeddingBackward& e, cudaStream_t stream) {
  const int64_t count = e.dout[0];
  if (e.dout.numel() == 0) return;
  const auto* tokens = pointer<int32_t>(e.tokens);
  size_t sort_bytes = 0;
  int32_t* none = nullptr;
  TRI_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, tokens, none, none, none, static_cast<int>(count), 0,
                                           32, stream));
  // Scratch: row numbers, sorted tokens, sorted rows, then the sort's own.
  const size_t list = (static_cast<size_t>(count) * sizeof(int32_t) + 255) / 256 * 256;
  char* scratch = static_cast<char*>(workspace(stream, Scratch::kSort, 3 * list + sort_bytes));
  auto* numbers = reinterpret_cast<int32_t*>(scratch);
  auto* sorted_tokens = reinterpret_cast<int32_t*>(scratch + list);
  auto* sorted_rows = reinterpret_cast<int32_t*>(scratch + 2 * list);
  number_rows<<<blocks_for(count), kThreads, 0, stream>>>(numbers, count);
  TRI_CUDA(cub::DeviceRadixSort::SortPairs(scratch + 3 * list, sort_bytes, tokens, sorted_tokens, numbers, sorted_rows,
                                           static_cast<int>(count), 0, 32, stream));
  dispatch(e.dout.dtype, [&](auto type) {
    using T = decltype(type);
    add_runs<T><<<static_cast<unsigned>(count), kThreads, 0, stream>>>(pointer<float>(e.dweight), pointer<T>(e.dout),
                                                                       sorted_tokens, sorted_rows, count, e.dout[1],
                                                                       e.dweight[0], e.first_token);
  });
  TRI_CUDA_LAUNCH("embedding_backward");
}

void position_forward(const PositionForward& p, cudaStream_t stream) {
  if (p.inout.numel() == 0) return;
  dispatch(p.inout.dtype, [&](auto type) {
    using T = decltype(type);
    const bool vector = aligned<T>(p.inout[1], {p.inout, p.weight});
    const int64_t packs = vector ? p.inout.numel() / Pack<T>::kSize : p.inout.numel();
    auto kernel = vector ? position_kernel<T, Pack<T>::kSize> : position_kernel<T, 1>;
    kernel<<<blocks_for(packs), kThreads, 0, stream>>>(pointer<T>(p.inout), pointer<T>(p.weight), packs, p.inout[1],
                                                       p.weight[0], p.first_row);
  });
  TRI_CUDA_LAUNCH("position_forward");
}

void position_backward(const PositionBackward& p, cudaStream_t stream) {
  if (p.dout.numel() == 0) return;
  dispatch(p.dout.dtype, [&](auto type) {
    using T = decltype(type);
    position_gradient_kernel<T><<<blocks_for(p.dweight.numel()), kThreads, 0, stream>>>(
        pointer<float>(p.dweight), pointer<T>(p.dout), p.dout[0], p.dout[1], p.dweight[0], p.first_row);
  });
  TRI_CUDA_LAUNCH("position_backward");
}

}  // namespace tri::cuda
