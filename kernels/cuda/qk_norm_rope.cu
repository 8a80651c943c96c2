// QK-norm and rotary position embedding where hopper_qk_norm_rope.cu cannot: formulas in kernels/qk_norm_rope.h.
//   out, inp, dout, dinp (R, NKVl · (G + 2) · HS) bf16|f32, in either order (qkv_row.h)    weights (HS)
//   table (T, HS/2, 2) f32
// Mapping: kLanes neighbouring lanes per head. A lane holds kPacks pairs of packs: kVec elements of the head's first
// half and the kVec elements that they rotate with. A warp works on a few heads of one kind (queries, keys or values)
// of one row, its lane groups on neighbouring heads, so angles and weights stay in registers; sums over a head are
// shuffles. Backward: blocks are persistent, each for queries or for keys, and keep the weight's gradient in registers;
// a second kernel adds the blocks' sums in a fixed order.
// Limits: HS up to 512. Bound: memory; forward reads and writes each element once, backward reads inp and dout and
// writes dinp.  Reference: kernels/cpu/qk_norm_rope.cpp.
#include <algorithm>
#include <type_traits>

#include "kernels/core/dims.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/hopper_qk_norm_rope.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/qk_norm_rope.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int kWarps = kThreadsPerBlock / 32;

enum Kind { kQueries, kKeys, kValues };

struct Shape {
  int64_t rows;
  int half, seq_len, kv_heads, group;
  int heads_once;             // that a warp processes per row
  int query_parts, kv_parts;  // ceil(heads of a row / heads_once) for queries; for keys, and for values
  float eps, weight_offset;
  float per_group;  // 1 / group
  QkvRow to, from;

  __device__ int heads(Kind kind) const { return kind == kQueries ? kv_heads * group : kv_heads; }
  // Returns the offset of head `n` of a kind in a row. The division is exact because heads are few.
  __device__ int offset(const QkvRow& row, Kind kind, int n) const {
    if (kind == kKeys) return row.key(n);
    if (kind == kValues) return row.value(n);
    const int kv_head = static_cast<int>((static_cast<float>(n) + 0.5f) * per_group);
    return row.query(kv_head, n - kv_head * group);
  }
};

template <class T, int kVec, int kPacks>
__device__ __forceinline__ float sum_of_squares(const HeadPacks<T, kVec, kPacks>& packs) {
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float a[kVec], b[kVec];
    unpack(packs.first[p], a);
    unpack(packs.second[p], b);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum += a[i] * a[i] + b[i] * b[i];
  }
  return sum;
}

// The weights of pack pair `p` plus the offset. Adding 0 changes no bit of what follows.
template <class T, int kVec, int kPacks>
__device__ __forceinline__ void unpack_weights(const HeadPacks<T, kVec, kPacks>& weight, int p, float offset,
                                               float (&first)[kVec], float (&second)[kVec]) {
  unpack(weight.first[p], first);
  unpack(weight.second[p], second);
#pragma unroll
  for (int i = 0; i < kVec; ++i) first[i] += offset, second[i] += offset;
}

// The part of a row that a warp processes.
struct Part {
  int64_t row;
  Kind kind;
  int begin, end;  // heads of the kind
  __device__ Part(const Shape& s, unsigned item, unsigned parts, Kind first_kind)
      : row(item / parts), kind(first_kind) {
    int part = static_cast<int>(item % parts);
    if (kind == kQueries && part >= s.query_parts) part -= s.query_parts, kind = kKeys;
    if (kind == kKeys && part >= s.kv_parts) part -= s.kv_parts, kind = kValues;
    begin = part * s.heads_once;
    end = min(begin + s.heads_once, s.heads(kind));
  }
};

template <class T, int kVec, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreadsPerBlock)
    forward_kernel(T* out, const T* inp, const T* query_weight, const T* key_weight, const float* table, Shape s) {
  using L = Lane<T, kVec, kLanes, kPacks>;
  const Part part(s, blockIdx.x * kWarps + threadIdx.x / 32, s.query_parts + 2 * s.kv_parts, kQueries);
  if (part.row >= s.rows) return;
  const L lane(s.half);
  inp += part.row * s.from.width;
  out += part.row * s.to.width;
  int n = part.begin + lane.group;
  const auto load = [&](int head) {
    const bool present = head < part.end;
    return lane.load(inp + (present ? s.offset(s.from, part.kind, head) : 0), present);
  };
  if (part.kind == kValues) {
    for (; n < part.end; n += L::kGroups) lane.store(out + s.offset(s.to, kValues, n), load(n));
    return;
  }
  // Weights times cosines and sines: out = rstd · (a · wc_a - b · ws_b, b · wc_b + a · ws_a).
  float wc_a[kPacks][kVec], ws_a[kPacks][kVec], wc_b[kPacks][kVec], ws_b[kPacks][kVec];
  {
    float2 angles[kPacks][kVec];
    lane.load_angles(table + part.row % s.seq_len * 2 * s.half, angles);
    const auto weight = lane.load(part.kind == kQueries ? query_weight : key_weight, true);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float wa[kVec], wb[kVec];
      unpack_weights(weight, p, s.weight_offset, wa, wb);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        wc_a[p][i] = wa[i] * angles[p][i].x, ws_a[p][i] = wa[i] * angles[p][i].y;
        wc_b[p][i] = wb[i] * angles[p][i].x, ws_b[p][i] = wb[i] * angles[p][i].y;
      }
    }
  }
  const float mean_factor = 0.5f / static_cast<float>(s.half);
  // Every lane runs the loop equally often, because the sums need all of them.
  for (int first = part.begin; first < part.end; first += L::kGroups, n += L::kGroups) {
    auto x = load(n);
    const float rstd = rsqrtf(head_sum<kLanes>(sum_of_squares(x)) * mean_factor + s.eps);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float a[kVec], b[kVec];
      unpack(x.first[p], a);
      unpack(x.second[p], b);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float turned = a[i] * wc_a[p][i] - b[i] * ws_b[p][i];
        b[i] = rstd * (b[i] * wc_b[p][i] + a[i] * ws_a[p][i]);
        a[i] = rstd * turned;
      }
      x.first[p] = pack_floats<T>(a);
      x.second[p] = pack_floats<T>(b);
    }
    if (n < part.end) lane.store(out + s.offset(s.to, part.kind, n), x);
  }
}

// The first `query_blocks` blocks process queries, the others keys and, if `copies`, values.
// partial (gridDim.x, 2, HS): each block's sum for the gradient of its weight, and zeros for the other one.
template <class T, int kVec, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreadsPerBlock, kPacks == 1 ? 2 : 1)
    backward_kernel(T* dinp, float* partial, const T* dout, const T* inp, const T* query_weight, const T* key_weight,
                    const float* table, int query_blocks, bool copies, Shape s) {
  using L = Lane<T, kVec, kLanes, kPacks>;
  const L lane(s.half);
  const bool of_queries = static_cast<int>(blockIdx.x) < query_blocks;
  const int blocks = of_queries ? query_blocks : static_cast<int>(gridDim.x) - query_blocks;
  const int block = static_cast<int>(blockIdx.x) - (of_queries ? 0 : query_blocks);
  const int parts = of_queries ? s.query_parts : s.kv_parts * (copies ? 2 : 1);
  const auto weight = lane.load(of_queries ? query_weight : key_weight, true);
  float dweight[2][kPacks][kVec] = {};  // of either half
  const float mean_factor = 0.5f / static_cast<float>(s.half);
  const auto items = static_cast<unsigned>(s.rows * parts);
  for (unsigned item = block * kWarps + threadIdx.x / 32; item < items; item += blocks * kWarps) {
    const Part part(s, item, parts, of_queries ? kQueries : kKeys);
    const T *inp_row = inp + part.row * s.to.width, *dout_row = dout + part.row * s.from.width;
    T* dinp_row = dinp + part.row * s.to.width;
    int n = part.begin + lane.group;
    if (part.kind == kValues) {
      for (; n < part.end; n += L::kGroups)
        lane.store(dinp_row + s.offset(s.to, kValues, n), lane.load(dout_row + s.offset(s.from, kValues, n), true));
      continue;
    }
    float2 angles[kPacks][kVec];
    lane.load_angles(table + part.row % s.seq_len * 2 * s.half, angles);
    for (int first = part.begin; first < part.end; first += L::kGroups, n += L::kGroups) {
      const bool present = n < part.end;
      const int at = present ? s.offset(s.to, part.kind, n) : 0;
      const auto x = lane.load(inp_row + at, present);
      auto g = lane.load(dout_row + (present ? s.offset(s.from, part.kind, n) : 0), present);
      float na[kPacks][kVec], nb[kPacks][kVec];  // the gradient of the norm's output
      float squares = 0, product = 0;            // of x; of x times the gradient of x · rstd
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float a[kVec], b[kVec], wa[kVec], wb[kVec];
        unpack(x.first[p], a);
        unpack(x.second[p], b);
        unpack(g.first[p], na[p]);
        unpack(g.second[p], nb[p]);
        unpack_weights(weight, p, s.weight_offset, wa, wb);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float ga = na[p][i], gb = nb[p][i];
          na[p][i] = ga * angles[p][i].x + gb * angles[p][i].y;
          nb[p][i] = gb * angles[p][i].x - ga * angles[p][i].y;
          squares += a[i] * a[i] + b[i] * b[i];
          product += na[p][i] * wa[i] * a[i] + nb[p][i] * wb[i] * b[i];
        }
      }
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        squares += __shfl_xor_sync(kAllLanes, squares, offset);
        product += __shfl_xor_sync(kAllLanes, product, offset);
      }
      const float rstd = rsqrtf(squares * mean_factor + s.eps);
      const float slope = -product * mean_factor * rstd * rstd * rstd;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float a[kVec], b[kVec], wa[kVec], wb[kVec];
        unpack(x.first[p], a);
        unpack(x.second[p], b);
        unpack_weights(weight, p, s.weight_offset, wa, wb);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          na[p][i] *= rstd;
          nb[p][i] *= rstd;
          dweight[0][p][i] += na[p][i] * a[i];  // zero for heads that are not present
          dweight[1][p][i] += nb[p][i] * b[i];
          a[i] = na[p][i] * wa[i] + a[i] * slope;
          b[i] = nb[p][i] * wb[i] + b[i] * slope;
        }
        g.first[p] = pack_floats<T>(a);
        g.second[p] = pack_floats<T>(b);
      }
      if (present) lane.store(dinp_row + at, g);
    }
  }
  // Adds the lane groups of a warp by shuffles, then the warps of the block one after another.
  extern __shared__ float columns[];  // (HS)
#pragma unroll
  for (int side = 0; side < 2; ++side)
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kVec; ++i)
#pragma unroll
        for (int offset = kLanes; offset < 32; offset *= 2)
          dweight[side][p][i] += __shfl_xor_sync(kAllLanes, dweight[side][p][i], offset);
  for (int warp = 0; warp < kWarps; ++warp) {
    if (static_cast<int>(threadIdx.x) / 32 == warp && lane.group == 0)
#pragma unroll
      for (int side = 0; side < 2; ++side)
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
          if (lane.owns(p))
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
              float& column = columns[side * s.half + lane.element(p) + i];
              column = dweight[side][p][i] + (warp == 0 ? 0.0f : column);
            }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < 2 * s.half; i += kThreadsPerBlock) {
    float* sums = partial + blockIdx.x * int64_t{4} * s.half;
    sums[of_queries ? i : 2 * s.half + i] = columns[i];
    sums[of_queries ? 2 * s.half + i : i] = 0;
  }
}

template <class Op>
Shape shape_of(const Op& n, QkvOrder to, QkvOrder from) {
  const int half = static_cast<int>(n.table[1]);
  return {.rows = n.inp[0],
          .half = half,
          .seq_len = static_cast<int>(n.table[0]),
          .kv_heads = n.num_kv_heads,
          .group = n.group,
          .eps = n.eps,
          .weight_offset = n.offset,
          .per_group = 1.0f / static_cast<float>(n.group),
          .to = qkv_row(to, n.num_kv_heads, n.group, 2 * half),
          .from = qkv_row(from, n.num_kv_heads, n.group, 2 * half)};
}

// Calls f(type, kVec, kLanes, kPacks) with the mapping for the shape, and sets how a row is divided: a lane group
// processes up to kHeads heads, for which it reads angles and weights once. kBf16s: bf16 elements per pack.
template <int kBf16s, int kHeads, class F>
void choose_mapping(Shape& s, Dtype dtype, std::initializer_list<Tensor> tensors, F&& f) {
  const auto with_lanes = [&](auto type, auto vec, auto lanes, auto packs) {
    s.heads_once = kHeads * (32 / decltype(lanes)::value);
    s.query_parts = static_cast<int>(ceil_div(s.kv_heads * s.group, s.heads_once));
    s.kv_parts = static_cast<int>(ceil_div(s.kv_heads, s.heads_once));
    TRI_REQUIRE(s.rows * (s.query_parts + 2 * s.kv_parts) <= INT32_MAX, "qk_norm_rope: {} rows in one call", s.rows);
    f(type, vec, lanes, packs);
  };
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = sizeof(T) == 2 ? kBf16s : Pack<T>::kSize;
    const std::integral_constant<int, kVec> vec;
    const std::integral_constant<int, 1> one;
    const int64_t lanes = aligned<T>(s.half, tensors) ? s.half / kVec : 64;
    if (lanes <= 4) return with_lanes(type, vec, std::integral_constant<int, 4>{}, one);
    if (lanes <= 8) return with_lanes(type, vec, std::integral_constant<int, 8>{}, one);
    if (lanes <= 16) return with_lanes(type, vec, std::integral_constant<int, 16>{}, one);
    if (lanes <= 32) return with_lanes(type, vec, std::integral_constant<int, 32>{}, one);
    with_lanes(type, one, std::integral_constant<int, 32>{}, std::integral_constant<int, 8>{});
  });
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeForward& n, CudaStream& stream) {
  if (n.inp[0] > 0 && hopper_qk_norm_rope_forward(n, stream)) return;
  Shape s = shape_of(n, n.out_order, n.inp_order);
  if (s.rows == 0) return;
  // Half packs and few heads per lane: many warps with few registers hide memory latency best, as measured.
  choose_mapping<4, 4>(
      s, n.inp.dtype, {n.out, n.inp, n.query_weight, n.key_weight}, [&](auto type, auto vec, auto lanes, auto packs) {
        using T = decltype(type);
        auto kernel = forward_kernel<T, decltype(vec)::value, decltype(lanes)::value, decltype(packs)::value>;
        const int64_t warps = s.rows * (s.query_parts + 2 * s.kv_parts);
        kernel<<<static_cast<unsigned>(ceil_div(warps, kWarps)), kThreadsPerBlock, 0, stream>>>(
            pointer<T>(n.out), pointer<T>(n.inp), pointer<T>(n.query_weight), pointer<T>(n.key_weight),
            pointer<float>(n.table), s);
        TRI_CUDA_LAUNCH("qk_norm_rope_forward");
      });
}

void qk_norm_rope_backward(const QkNormRopeBackward& n, CudaStream& stream) {
  if (n.inp[0] > 0 && hopper_qk_norm_rope_backward(n, stream)) return;
  Shape s = shape_of(n, n.dinp_order, n.dout_order);
  if (s.rows == 0) return;
  const bool copies = n.dinp.data != n.dout.data;
  choose_mapping<8, 8>(
      s, n.inp.dtype, {n.dinp, n.dout, n.inp, n.query_weight, n.key_weight},
      [&](auto type, auto vec, auto lanes, auto packs) {
        using T = decltype(type);
        auto kernel = backward_kernel<T, decltype(vec)::value, decltype(lanes)::value, decltype(packs)::value>;
        const int head_size = 2 * s.half;
        const size_t shared = sizeof(float) * static_cast<size_t>(head_size);
        int resident = 0;
        TRI_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreadsPerBlock, shared));
        // Uses as many blocks as the GPU holds, divided between queries and keys in proportion to their elements.
        const int64_t most = int64_t{std::max(resident, 1)} * num_multiprocessors(stream);
        const int64_t of_queries = std::max<int64_t>(1, most * s.group / (s.group + (copies ? 2 : 1)));
        const auto query_blocks = static_cast<int>(std::min(ceil_div(s.rows * s.query_parts, kWarps), of_queries));
        const auto key_blocks = static_cast<int>(std::min(ceil_div(s.rows * s.kv_parts * (copies ? 2 : 1), kWarps),
                                                          std::max<int64_t>(1, most - of_queries)));
        const int blocks = query_blocks + key_blocks;
        auto* partial =
            static_cast<float*>(workspace(stream, Scratch::kColumnSums, 2 * shared * static_cast<size_t>(blocks)));
        kernel<<<static_cast<unsigned>(blocks), kThreadsPerBlock, shared, stream>>>(
            pointer<T>(n.dinp), partial, pointer<T>(n.dout), pointer<T>(n.inp), pointer<T>(n.query_weight),
            pointer<T>(n.key_weight), pointer<float>(n.table), query_blocks, copies, s);
        TRI_CUDA_LAUNCH("qk_norm_rope_backward");
        add_slabs<2>({{pointer<float>(n.dquery_weight), pointer<float>(n.dkey_weight)}}, partial, head_size, blocks,
                     stream);
      });
}

}  // namespace tri::cuda
