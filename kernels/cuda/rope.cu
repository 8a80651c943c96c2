// Rotary position embedding: formulas in kernels/rope.h.
//   qkv (R, NKVl · (G + 2) · HS) bf16|f32, in place    table (T, HS/2, 2) f32
// Mapping: a thread sixteen bytes of a head's first half and the sixteen that they pair with in its second, where
// halves are aligned; else a pair of elements.  Bound: memory, each query and key once.  Mirror: kernels/cpu/rope.cpp.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

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

}  // namespace

void rope(const Rope& r, CudaStream& stream) {
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

}  // namespace tri::cuda
