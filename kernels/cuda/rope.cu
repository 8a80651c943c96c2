// Rotary position embedding: formulas in kernels/rope.h.
//   out, inp (R, NKVl · (G + 2) · HS) bf16|f32, in either order (qkv_row.h)    table (T, HS/2, 2) f32
// Mapping: a thread sixteen bytes of a head's first half and the sixteen that they pair with in its second, where
// halves are aligned; else a pair of elements.  Bound: memory, in place each query and key once, else each element.
// Mirror: kernels/cpu/rope.cpp.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

struct Shape {
  int64_t rows;
  int half, seq_len, kv_heads, group;
  int slots;  // of a key/value head that are written: its queries, the key, and where they are copied the value
  QkvRow to, from;
};

__device__ int head_at(const QkvRow& row, int kv_head, int slot, int group) {
  return slot < group ? row.query(kv_head, slot) : slot == group ? row.key(kv_head) : row.value(kv_head);
}

// A thread turns, or copies, kVec pairs. `out` may be `inp`.
template <class T, int kVec>
__global__ void rope_kernel(T* out, const T* inp, const float* table, Shape d, float sign) {
  const int per_head = d.half / kVec;
  const int64_t i = thread_index();
  if (i >= d.rows * d.kv_heads * d.slots * per_head) return;
  const int element = static_cast<int>(i % per_head) * kVec;
  const int head = static_cast<int>(i / per_head % (d.kv_heads * d.slots));
  const int kv_head = head / d.slots, slot = head % d.slots;
  const int64_t r = i / per_head / (d.kv_heads * d.slots);
  const T* from = inp + r * d.from.width + head_at(d.from, kv_head, slot, d.group) + element;
  Pack<T, kVec> first = load_pack<kVec>(from), second = load_pack<kVec>(from + d.half);
  if (slot <= d.group) {
    const float2* angles = reinterpret_cast<const float2*>(table) + r % d.seq_len * d.half + element;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const float2 angle = angles[k];
      const float sine = sign * angle.y, a = to_float(first.item[k]), b = to_float(second.item[k]);
      first.item[k] = from_float<T>(a * angle.x - b * sine);
      second.item[k] = from_float<T>(b * angle.x + a * sine);
    }
  }
  T* to = out + r * d.to.width + head_at(d.to, kv_head, slot, d.group) + element;
  store_pack(to, first);
  store_pack(to + d.half, second);
}

}  // namespace

void rope(const Rope& r, CudaStream& stream) {
  const int half = static_cast<int>(r.table[1]);
  const Shape d{.rows = r.inp[0],
                .half = half,
                .seq_len = static_cast<int>(r.table[0]),
                .kv_heads = r.num_kv_heads,
                .group = r.group,
                .slots = r.out.data == r.inp.data ? r.group + 1 : r.group + 2,
                .to = qkv_row(r.out_order, r.num_kv_heads, r.group, 2 * half),
                .from = qkv_row(r.inp_order, r.num_kv_heads, r.group, 2 * half)};
  const int64_t pairs = d.rows * d.kv_heads * d.slots * half;
  if (pairs == 0) return;
  dispatch(r.inp.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(half, {r.out, r.inp});
    auto kernel = packs ? rope_kernel<T, kVec> : rope_kernel<T, 1>;
    kernel<<<blocks_for(packs ? pairs / kVec : pairs), kThreads, 0, stream>>>(
        pointer<T>(r.out), pointer<T>(r.inp), pointer<float>(r.table), d, r.pass == Pass::kForward ? 1.0f : -1.0f);
  });
  TRI_CUDA_LAUNCH("rope");
}

}  // namespace tri::cuda
