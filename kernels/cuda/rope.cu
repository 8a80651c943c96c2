// Rotary position embedding: formulas in kernels/rope.h.
//   out, inp (R, NKVl · (G + 2) · HS) bf16|f32, in either order (qkv_row.h)    table (T, HS/2, 2) f32
// Mapping: one thread per sixteen bytes of a head's first half and the sixteen that they pair with in its second if
// halves are aligned, otherwise per pair of elements, for a few heads of a group, which share the angles that it reads.
// Bound: memory; in place each query and key once, otherwise each element.  Reference: kernels/cpu/rope.cpp.
#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

constexpr int kSlots = 4;  // per thread, at most

struct Shape {
  int64_t rows;
  int half, seq_len, kv_heads, group;
  int slots;    // written per key/value head: its queries, the key and, if values are copied, the value
  int at_once;  // slots per thread
  QkvRow to, from;
};

__device__ int head_at(const QkvRow& row, int kv_head, int slot, int group) {
  return slot < group ? row.query(kv_head, slot) : slot == group ? row.key(kv_head) : row.value(kv_head);
}

// Each thread rotates, or copies, kVec pairs of slots [blockIdx.y · at_once, ...). `out` may be `inp`.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) rope_kernel(T* out, const T* inp, const float* table, Shape d, float sign) {
  const int per_head = d.half / kVec, per_row = d.kv_heads * per_head;
  const int64_t i = thread_index(), r = i / per_row;
  if (r >= d.rows) return;
  const int rest = static_cast<int>(i - r * per_row), kv_head = rest / per_head;
  const int element = (rest - kv_head * per_head) * kVec;
  const float2* from_table = reinterpret_cast<const float2*>(table) + r % d.seq_len * d.half + element;
  float2 angles[kVec];
#pragma unroll
  for (int k = 0; k < kVec; ++k) angles[k] = make_float2(from_table[k].x, sign * from_table[k].y);
  inp += r * d.from.width + element;
  out += r * d.to.width + element;
  const int first_slot = static_cast<int>(blockIdx.y) * d.at_once, end_slot = min(first_slot + d.at_once, d.slots);
  for (int slot = first_slot; slot < end_slot; ++slot) {
    const T* from = inp + head_at(d.from, kv_head, slot, d.group);
    Pack<T, kVec> first = load_pack<kVec>(from), second = load_pack<kVec>(from + d.half);
    if (slot <= d.group) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const float a = to_float(first.item[k]), b = to_float(second.item[k]);
        first.item[k] = from_float<T>(a * angles[k].x - b * angles[k].y);
        second.item[k] = from_float<T>(b * angles[k].x + a * angles[k].y);
      }
    }
    T* to = out + head_at(d.to, kv_head, slot, d.group);
    store_pack(to, first);
    store_pack(to + d.half, second);
  }
}

}  // namespace

void rope(const Rope& r, CudaStream& stream) {
  const int half = static_cast<int>(r.table[1]);
  const int slots = r.out.data == r.inp.data ? r.group + 1 : r.group + 2;
  const int64_t chunks = ceil_div(slots, kSlots);
  const Shape d{.rows = r.inp[0],
                .half = half,
                .seq_len = static_cast<int>(r.table[0]),
                .kv_heads = r.num_kv_heads,
                .group = r.group,
                .slots = slots,
                .at_once = static_cast<int>(ceil_div(slots, chunks)),
                .to = qkv_row(r.out_order, r.num_kv_heads, r.group, 2 * half),
                .from = qkv_row(r.inp_order, r.num_kv_heads, r.group, 2 * half)};
  const int64_t pairs = d.rows * d.kv_heads * half;  // per slot
  if (pairs == 0) return;
  dispatch(r.inp.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(half, {r.out, r.inp});
    auto kernel = packs ? rope_kernel<T, kVec> : rope_kernel<T, 1>;
    const dim3 grid(blocks_for(packs ? pairs / kVec : pairs), static_cast<unsigned>(chunks));
    kernel<<<grid, kThreads, 0, stream>>>(pointer<T>(r.out), pointer<T>(r.inp), pointer<float>(r.table), d,
                                          r.pass == Pass::kForward ? 1.0f : -1.0f);
  });
  TRI_CUDA_LAUNCH("rope");
}

}  // namespace tri::cuda
