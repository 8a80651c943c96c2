// cast and accumulate (kernels/elementwise.h), rope (kernels/rope.h), bias_backward (kernels/gemm.h).
// Mapping: a thread an element (rope: a pair of elements); bias_backward: column sums in a fixed order (reduce.cuh).
// Bound: memory, each element once.  Mirrors: kernels/cpu/elementwise.cpp, rope.cpp, gemm.cpp.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;
unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ int64_t thread_index() { return blockIdx.x * int64_t{kThreads} + threadIdx.x; }

template <class Out, class Inp>
__global__ void cast_kernel(Out* out, const Inp* inp, int64_t count) {
  if (const int64_t i = thread_index(); i < count) out[i] = from_float<Out>(to_float(inp[i]));
}

template <class T>
__global__ void accumulate_kernel(T* inout, const T* inp, int64_t count) {
  if (const int64_t i = thread_index(); i < count) inout[i] = from_float<T>(to_float(inout[i]) + to_float(inp[i]));
}

// qkv rows of `row` elements; a rotated head is a query or the key of a group.
template <class T>
__global__ void rope_kernel(T* qkv, const float2* table, int64_t rows, int row, int half, int seq_len, int heads,
                            int group, float sign) {
  const int64_t i = thread_index();
  if (i >= rows * heads * half) return;
  const int element = static_cast<int>(i % half), head = static_cast<int>(i / half % heads);
  const int64_t r = i / half / heads;
  const int slot = head / (group + 1) * (group + 2) + head % (group + 1);
  T* at = qkv + r * row + slot * 2 * half + element;
  const float2 angle = table[r % seq_len * half + element];
  const float sine = sign * angle.y, a = to_float(at[0]), b = to_float(at[half]);
  at[0] = from_float<T>(a * angle.x - b * sine);
  at[half] = from_float<T>(b * angle.x + a * sine);
}

template <class T>
struct Element {
  const T* dout;
  int64_t width;
  __device__ void operator()(int64_t r, int64_t c, float (&v)[1]) const { v[0] = to_float(dout[r * width + c]); }
};

}  // namespace

void cast(const Cast& c, cudaStream_t stream) {
  const int64_t count = c.out.numel();
  if (count == 0) return;
  dispatch(c.out.dtype, [&](auto out_type) {
    dispatch(c.inp.dtype, [&](auto inp_type) {
      using Out = decltype(out_type);
      using Inp = decltype(inp_type);
      cast_kernel<Out, Inp>
          <<<blocks_for(count), kThreads, 0, stream>>>(pointer<Out>(c.out), pointer<Inp>(c.inp), count);
    });
  });
  TRI_CUDA_LAUNCH("cast");
}

void accumulate(const Accumulate& a, cudaStream_t stream) {
  const int64_t count = a.inout.numel();
  if (count == 0) return;
  dispatch(a.inout.dtype, [&](auto type) {
    using T = decltype(type);
    accumulate_kernel<T><<<blocks_for(count), kThreads, 0, stream>>>(pointer<T>(a.inout), pointer<T>(a.inp), count);
  });
  TRI_CUDA_LAUNCH("accumulate");
}

void rope(const Rope& r, cudaStream_t stream) {
  const int half = static_cast<int>(r.table[1]), heads = r.num_kv_heads * (r.group + 1);
  const int64_t pairs = r.qkv[0] * heads * half;
  if (pairs == 0) return;
  dispatch(r.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    rope_kernel<T><<<blocks_for(pairs), kThreads, 0, stream>>>(
        pointer<T>(r.qkv), pointer<float2>(r.table), r.qkv[0], static_cast<int>(r.qkv[1]), half,
        static_cast<int>(r.table[0]), heads, r.group, r.pass == Pass::kForward ? 1.0f : -1.0f);
  });
  TRI_CUDA_LAUNCH("rope");
}

void bias_backward(const BiasBackward& b, cudaStream_t stream) {
  dispatch(b.dout.dtype, [&](auto type) {
    using T = decltype(type);
    add_column_sums<1>({{pointer<float>(b.dbias)}}, b.dout[0], b.dout[1], Element<T>{pointer<T>(b.dout), b.dout[1]},
                       stream);
  });
}

}  // namespace tri::cuda
