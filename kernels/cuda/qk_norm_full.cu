// QK-norm over the full width and rotary position embedding: formulas in kernels/qk_norm_full.h.
//   out, inp, dout, dinp (R, NKVl · (G + 2) · HS) bf16|f32, in either order (qkv_row.h)    weights (NHl · HS),
//   (NKVl · HS)    sums, squares, products, rstd (R, 2) f32    table (T, HS/2, 2) f32
// Mapping: an item is sixteen bytes of a head's first half and the sixteen that they rotate with if halves are aligned,
// otherwise a pair of elements. Sums: a block per row, which adds its threads' items. Forward: a thread per item.
// Backward: a thread works on the same item of every gridDim.y-th row and keeps the gradient of its weights in
// registers; a second kernel adds the sums of the gridDim.y slabs in a fixed order.
// Bound: memory; squares reads queries and keys once; forward reads and writes each element once; products reads inp
// and dout, and backward both again, and writes dinp.  Reference: kernels/cpu/qk_norm_full.cpp.
#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kSumThreads = 256;

struct Shape {
  int64_t rows;
  int half, seq_len, kv_heads, group, per_head;  // per_head: items
  QkvRow to, from;                               // of `to`: what is written, or the forward pass's input

  __host__ __device__ int query_items() const { return kv_heads * group * per_head; }
  __host__ __device__ int key_items() const { return kv_heads * per_head; }
};

enum Kind { kQueries, kKeys, kValues };

// Item `i` of a row: queries first, then keys, then values.
struct Item {
  Kind kind;
  int head, element;  // of its kind; of the head's first half

  __device__ Item(const Shape& s, int i, int vec) : kind(kQueries) {
    if (i >= s.query_items()) i -= s.query_items(), kind = kKeys;
    if (kind == kKeys && i >= s.key_items()) i -= s.key_items(), kind = kValues;
    head = i / s.per_head;
    element = (i - head * s.per_head) * vec;
  }
  __device__ int offset(const Shape& s, const QkvRow& row) const {
    if (kind == kKeys) return row.key(head) + element;
    if (kind == kValues) return row.value(head) + element;
    const int kv_head = head / s.group;
    return row.query(kv_head, head - kv_head * s.group) + element;
  }
  __device__ int weight(const Shape& s) const { return head * 2 * s.half + element; }
};

// The elements of an item in fp32: of the first half, and of the second.
template <int kVec>
struct Pairs {
  float a[kVec], b[kVec];

  template <class T>
  __device__ static Pairs load(const T* at, int half) {
    Pairs x;
    unpack(load_pack<kVec>(at), x.a);
    unpack(load_pack<kVec>(at + half), x.b);
    return x;
  }
  template <class T>
  __device__ void store(T* at, int half) const {
    store_pack(at, pack_floats<T>(a));
    store_pack(at + half, pack_floats<T>(b));
  }
  // Rotates the pairs by the angles of row `row` from `element` on, or back if sign is -1.
  __device__ void rotate(const float* table, const Shape& s, int64_t row, int element, float sign) {
    const auto* angles = reinterpret_cast<const float2*>(table) + row % s.seq_len * s.half + element;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const float2 angle = angles[k];
      const float turned = a[k] * angle.x - sign * b[k] * angle.y;
      b[k] = b[k] * angle.x + sign * a[k] * angle.y;
      a[k] = turned;
    }
  }
};

// sums[row] = f(item) over the queries, and over the keys, of row blockIdx.x.
template <int kVec, class F>
__device__ __forceinline__ void sum_items(float* sums, const Shape& s, F f) {
  __shared__ float shared[kSumThreads / 32];
  float of_queries = 0, of_keys = 0;
  for (int i = static_cast<int>(threadIdx.x); i < s.query_items() + s.key_items(); i += kSumThreads) {
    const Item item(s, i, kVec);
    const float sum = f(item);
    (item.kind == kQueries ? of_queries : of_keys) += sum;
  }
  of_queries = block_sum<kSumThreads>(of_queries, shared);
  of_keys = block_sum<kSumThreads>(of_keys, shared);
  if (threadIdx.x == 0) {
    sums[2 * int64_t{blockIdx.x}] = of_queries;
    sums[2 * int64_t{blockIdx.x} + 1] = of_keys;
  }
}

template <class T, int kVec>
__global__ void __launch_bounds__(kSumThreads) squares_kernel(float* sums, const T* inp, Shape s) {
  inp += int64_t{blockIdx.x} * s.to.width;
  sum_items<kVec>(sums, s, [&](const Item& item) {
    const auto x = Pairs<kVec>::load(inp + item.offset(s, s.to), s.half);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum += x.a[k] * x.a[k] + x.b[k] * x.b[k];
    return sum;
  });
}

template <class T>
struct Weights {
  const T *query, *key;
  template <int kVec>
  __device__ Pairs<kVec> of(const Item& item, const Shape& s) const {
    return Pairs<kVec>::load((item.kind == kQueries ? query : key) + item.weight(s), s.half);
  }
};

template <class T, int kVec>
__global__ void __launch_bounds__(kSumThreads)
    products_kernel(float* sums, const T* dout, const T* inp, Weights<T> weights, const float* table, Shape s) {
  const int64_t row = blockIdx.x;
  sum_items<kVec>(sums, s, [&](const Item& item) {
    const auto x = Pairs<kVec>::load(inp + row * s.to.width + item.offset(s, s.to), s.half);
    auto g = Pairs<kVec>::load(dout + row * s.from.width + item.offset(s, s.from), s.half);
    const auto w = weights.template of<kVec>(item, s);
    g.rotate(table, s, row, item.element, -1.0f);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum += g.a[k] * w.a[k] * x.a[k] + g.b[k] * w.b[k] * x.b[k];
    return sum;
  });
}

struct Scales {
  float eps, per_query, per_key;  // 1 / width
};

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(T* out, float* rstd, const float* squares, const T* inp, Weights<T> weights, const float* table,
                   Scales scales, Shape s) {
  const int items = s.query_items() + 2 * s.key_items();
  const int64_t i = thread_index(), row = i / items;
  if (row >= s.rows) return;
  const Item item(s, static_cast<int>(i - row * items), kVec);
  auto x = Pairs<kVec>::load(inp + row * s.from.width + item.offset(s, s.from), s.half);
  if (item.kind != kValues) {
    const bool is_key = item.kind == kKeys;
    const float scale = rsqrtf(squares[2 * row + is_key] * (is_key ? scales.per_key : scales.per_query) + scales.eps);
    if (item.head == 0 && item.element == 0) rstd[2 * row + is_key] = scale;
    const auto w = weights.template of<kVec>(item, s);
#pragma unroll
    for (int k = 0; k < kVec; ++k) x.a[k] *= scale * w.a[k], x.b[k] *= scale * w.b[k];
    x.rotate(table, s, row, item.element, 1.0f);
  }
  x.store(out + row * s.to.width + item.offset(s, s.to), s.half);
}

// query_sums (gridDim.y, NHl · HS), key_sums (gridDim.y, NKVl · HS): the gradients of the weights over a slab's rows.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dinp, float* query_sums, float* key_sums, const float* rstd, const float* products,
                    const T* dout, const T* inp, Weights<T> weights, const float* table, Scales scales, Shape s) {
  const int i = static_cast<int>(thread_index());
  if (i >= s.query_items() + (dinp == dout ? 1 : 2) * s.key_items()) return;
  const Item item(s, i, kVec);
  const int at = item.offset(s, s.to), from = item.offset(s, s.from);
  if (item.kind == kValues) {
    for (int64_t row = blockIdx.y; row < s.rows; row += gridDim.y)
      Pairs<kVec>::load(dout + row * s.from.width + from, s.half).store(dinp + row * s.to.width + at, s.half);
    return;
  }
  const bool is_key = item.kind == kKeys;
  const float per_width = is_key ? scales.per_key : scales.per_query;
  const auto w = weights.template of<kVec>(item, s);
  Pairs<kVec> dweight{};
  for (int64_t row = blockIdx.y; row < s.rows; row += gridDim.y) {
    const auto x = Pairs<kVec>::load(inp + row * s.to.width + at, s.half);
    auto g = Pairs<kVec>::load(dout + row * s.from.width + from, s.half);
    const float scale = rstd[2 * row + is_key];
    const float slope = -scale * scale * scale * products[2 * row + is_key] * per_width;
    g.rotate(table, s, row, item.element, -1.0f);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      g.a[k] *= scale, g.b[k] *= scale;
      dweight.a[k] += g.a[k] * x.a[k];
      dweight.b[k] += g.b[k] * x.b[k];
      g.a[k] = fmaf(x.a[k], slope, g.a[k] * w.a[k]);
      g.b[k] = fmaf(x.b[k], slope, g.b[k] * w.b[k]);
    }
    g.store(dinp + row * s.to.width + at, s.half);
  }
  const int64_t width = int64_t{is_key ? 1 : s.group} * s.kv_heads * 2 * s.half;
  float* sums = (is_key ? key_sums : query_sums) + blockIdx.y * width + item.weight(s);
#pragma unroll
  for (int k = 0; k < kVec; ++k) sums[k] = dweight.a[k], sums[s.half + k] = dweight.b[k];
}

template <class Op>
Shape shape_of(const Op& n, QkvOrder to, QkvOrder from, int seq_len) {
  const auto head_size = static_cast<int>(n.inp[1] / (int64_t{n.num_kv_heads} * (n.group + 2)));
  return {.rows = n.inp[0],
          .half = head_size / 2,
          .seq_len = seq_len,
          .kv_heads = n.num_kv_heads,
          .group = n.group,
          .to = qkv_row(to, n.num_kv_heads, n.group, head_size),
          .from = qkv_row(from, n.num_kv_heads, n.group, head_size)};
}

// Calls f(type, kVec) and sets the number of items. `tensors`: all that are read or written in packs.
template <class F>
void in_items(Shape& s, Dtype dtype, std::initializer_list<Tensor> tensors, F&& f) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(s.half, tensors);
    s.per_head = packs ? s.half / kVec : s.half;
    packs ? f(type, std::integral_constant<int, kVec>()) : f(type, std::integral_constant<int, 1>());
  });
}

template <class Op>
Scales scales_of(const Op& n, float eps) {
  return {eps, 1.0f / static_cast<float>(n.query_width), 1.0f / static_cast<float>(n.key_width)};
}

}  // namespace

void qk_norm_squares(const QkNormSquares& n, CudaStream& stream) {
  Shape s = shape_of(n, n.order, n.order, 1);
  if (s.rows == 0) return;
  in_items(s, n.inp.dtype, {n.inp}, [&](auto type, auto vec) {
    using T = decltype(type);
    squares_kernel<T, decltype(vec)::value>
        <<<static_cast<unsigned>(s.rows), kSumThreads, 0, stream>>>(pointer<float>(n.sums), pointer<T>(n.inp), s);
  });
  TRI_CUDA_LAUNCH("qk_norm_squares");
}

void qk_norm_full_forward(const QkNormFullForward& n, CudaStream& stream) {
  Shape s = shape_of(n, n.out_order, n.inp_order, static_cast<int>(n.table[0]));
  if (s.rows == 0) return;
  in_items(s, n.inp.dtype, {n.out, n.inp, n.query_weight, n.key_weight}, [&](auto type, auto vec) {
    using T = decltype(type);
    const int64_t threads = s.rows * (s.query_items() + 2 * s.key_items());
    forward_kernel<T, decltype(vec)::value><<<blocks_for(threads), kThreads, 0, stream>>>(
        pointer<T>(n.out), pointer<float>(n.rstd), pointer<float>(n.squares), pointer<T>(n.inp),
        Weights<T>{pointer<T>(n.query_weight), pointer<T>(n.key_weight)}, pointer<float>(n.table), scales_of(n, n.eps),
        s);
  });
  TRI_CUDA_LAUNCH("qk_norm_full_forward");
}

void qk_norm_products(const QkNormProducts& n, CudaStream& stream) {
  Shape s = shape_of(n, n.inp_order, n.dout_order, static_cast<int>(n.table[0]));
  if (s.rows == 0) return;
  in_items(s, n.inp.dtype, {n.dout, n.inp, n.query_weight, n.key_weight}, [&](auto type, auto vec) {
    using T = decltype(type);
    products_kernel<T, decltype(vec)::value><<<static_cast<unsigned>(s.rows), kSumThreads, 0, stream>>>(
        pointer<float>(n.sums), pointer<T>(n.dout), pointer<T>(n.inp),
        Weights<T>{pointer<T>(n.query_weight), pointer<T>(n.key_weight)}, pointer<float>(n.table), s);
  });
  TRI_CUDA_LAUNCH("qk_norm_products");
}

void qk_norm_full_backward(const QkNormFullBackward& n, CudaStream& stream) {
  Shape s = shape_of(n, n.dinp_order, n.dout_order, static_cast<int>(n.table[0]));
  if (s.rows == 0) return;
  in_items(s, n.inp.dtype, {n.dinp, n.dout, n.inp, n.query_weight, n.key_weight}, [&](auto type, auto vec) {
    using T = decltype(type);
    constexpr int64_t kBlocks = 8, kRows = 4;  // blocks per multiprocessor; rows per thread, at least
    const unsigned across = blocks_for(s.query_items() + 2 * int64_t{s.key_items()});
    const int64_t slabs = std::clamp<int64_t>(kBlocks * num_multiprocessors(stream) / across, 1, 65535);
    const auto down = static_cast<unsigned>(std::min(slabs, ceil_div(s.rows, kRows)));
    const int64_t queries = n.query_weight.numel(), keys = n.key_weight.numel();
    auto* sums = static_cast<float*>(
        workspace(stream, Scratch::kColumnSums, sizeof(float) * static_cast<size_t>(down * (queries + keys))));
    float* const key_sums = sums + down * queries;
    backward_kernel<T, decltype(vec)::value><<<dim3(across, down), kThreads, 0, stream>>>(
        pointer<T>(n.dinp), sums, key_sums, pointer<float>(n.rstd), pointer<float>(n.products), pointer<T>(n.dout),
        pointer<T>(n.inp), Weights<T>{pointer<T>(n.query_weight), pointer<T>(n.key_weight)}, pointer<float>(n.table),
        scales_of(n, 0.0f), s);
    TRI_CUDA_LAUNCH("qk_norm_full_backward");
    add_slabs<1>({{pointer<float>(n.dquery_weight)}}, sums, queries, static_cast<int>(down), stream);
    add_slabs<1>({{pointer<float>(n.dkey_weight)}}, key_sums, keys, static_cast<int>(down), stream);
  });
}

}  // namespace tri::cuda
