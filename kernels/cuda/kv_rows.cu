// Rows of keys and values: formulas and shapes in kernels/kv_rows.h.
// Mapping: one thread per sixteen bytes of a row of keys and values if heads are aligned, otherwise per element.
// Bound: memory; pack_kv reads and writes each element once, unpack_kv reads P elements for each that it writes.
// Reference: kernels/cpu/kv_rows.cpp.
#include "kernels/kv_rows.h"

#include "kernels/core/qkv_row.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

struct Shape {
  int64_t rows;
  int width, first, kv_heads;  // of a row of keys and values: its elements, and its heads of those of a QKV row
  QkvRow row;
};

// Where the element `i` of a row of keys and values is in its QKV row.
__device__ int in_qkv_row(const Shape& d, int i) {
  const int head = i / d.row.head_size, rest = i - head * d.row.head_size;
  return (head < d.kv_heads ? d.row.key(d.first + head) : d.row.value(d.first + head - d.kv_heads)) + rest;
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) pack_kv_kernel(T* kv, const T* qkv, Shape d) {
  const int64_t at = thread_index() * kVec, r = at / d.width;
  if (r >= d.rows) return;
  const int i = static_cast<int>(at - r * d.width);
  store_pack(kv + at, load_pack<kVec>(qkv + r * d.row.width + in_qkv_row(d, i)));
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) unpack_kv_kernel(T* qkv, const T* parts, int num_parts, Shape d) {
  const int64_t at = thread_index() * kVec, r = at / d.width, stride = d.rows * d.width;
  if (r >= d.rows) return;
  const int i = static_cast<int>(at - r * d.width);
  float sum[kVec];
  unpack(load_pack<kVec>(parts + at), sum);
#pragma unroll 4
  for (int p = 1; p < num_parts; ++p) {
    float x[kVec];
    unpack(load_pack<kVec>(parts + p * stride + at), x);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] += x[k];
  }
  store_pack(qkv + r * d.row.width + in_qkv_row(d, i), pack_floats<T>(sum));
}

template <class Args>
Shape shape_of(const Args& a, int64_t width) {
  const int head_size = static_cast<int>(a.qkv[1] / (int64_t{a.num_kv_heads} * (a.group + 2)));
  return {.rows = a.qkv[0],
          .width = static_cast<int>(width),
          .first = a.first_kv_head,
          .kv_heads = static_cast<int>(width / (2 * head_size)),
          .row = qkv_row(a.order, a.num_kv_heads, a.group, head_size)};
}

}  // namespace

void pack_kv(const PackKv& p, CudaStream& stream) {
  const Shape d = shape_of(p, p.kv[1]);
  const int64_t count = p.kv.numel();
  if (count == 0) return;
  dispatch(p.kv.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(d.row.head_size, {p.kv, p.qkv});
    auto kernel = packs ? pack_kv_kernel<T, kVec> : pack_kv_kernel<T, 1>;
    kernel<<<blocks_for(packs ? count / kVec : count), kThreads, 0, stream>>>(pointer<T>(p.kv), pointer<T>(p.qkv), d);
  });
  TRI_CUDA_LAUNCH("pack_kv");
}

void unpack_kv(const UnpackKv& u, CudaStream& stream) {
  const Shape d = shape_of(u, u.parts[2]);
  const int64_t count = d.rows * d.width;
  if (count == 0) return;
  dispatch(u.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = Pack<T>::kSize;
    const bool packs = aligned<T>(d.row.head_size, {u.parts, u.qkv});
    auto kernel = packs ? unpack_kv_kernel<T, kVec> : unpack_kv_kernel<T, 1>;
    kernel<<<blocks_for(packs ? count / kVec : count), kThreads, 0, stream>>>(pointer<T>(u.qkv), pointer<T>(u.parts),
                                                                              static_cast<int>(u.parts[0]), d);
  });
  TRI_CUDA_LAUNCH("unpack_kv");
}

}  // namespace tri::cuda
