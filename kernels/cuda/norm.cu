// Residual addition + LayerNorm/RMSNorm, forward and backward: formulas in kernels/norm.h.
//   inp, add, out, dout, ... (R, C) bf16|f32    weight, bias (C)    mean, rstd (R) f32
// Mapping: a block of 256 threads a row; the row lies in shared memory as fp32 between its passes, so global memory is
// read and written once. Parameter gradients: column sums over slabs of rows, then over the slabs, in a fixed order.
// Limits: C · 4 bytes of shared memory (C up to 56,000).  Bound: memory; forward 2·R·C elements (4 with a residual).
// Mirror: kernels/cpu/norm.cpp.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Forward {
  T *out, *sum;
  const T *inp, *add, *add_bias, *weight, *bias;
  float *mean, *rstd;  // mean: LayerNorm only
  int64_t width;
  float eps;
};

template <class T>
__global__ void norm_forward_kernel(Forward<T> a) {
  extern __shared__ float row[];
  __shared__ float reduce[kThreads / 32];
  const int64_t at = blockIdx.x * a.width;
  float total = 0;
  for (int64_t c = threadIdx.x; c < a.width; c += kThreads) {
    float x = to_float(a.inp[at + c]);
    if (a.add != nullptr) {
      x += to_float(a.add[at + c]);
      if (a.add_bias != nullptr) x += to_float(a.add_bias[c]);
      const T stored = from_float<T>(x);
      a.sum[at + c] = stored;
      x = to_float(stored);  // what backward will see
    }
    row[c] = x;
    total += x;
  }
  const float width = static_cast<float>(a.width);
  const float mean = a.mean == nullptr ? 0.0f : block_sum<kThreads>(total, reduce) / width;
  float square = 0;
  for (int64_t c = threadIdx.x; c < a.width; c += kThreads) square += (row[c] - mean) * (row[c] - mean);
  const float rstd = rsqrtf(block_sum<kThreads>(square, reduce) / width + a.eps);
  for (int64_t c = threadIdx.x; c < a.width; c += kThreads) {
    float y = (row[c] - mean) * rstd * to_float(a.weight[c]);
    if (a.bias != nullptr) y += to_float(a.bias[c]);
    a.out[at + c] = from_float<T>(y);
  }
  if (threadIdx.x != 0) return;
  if (a.mean != nullptr) a.mean[blockIdx.x] = mean;
  a.rstd[blockIdx.x] = rstd;
}

template <class T>
struct Backward {
  T* dinp;
  const T *dresidual, *dout, *inp, *weight;
  const float *mean, *rstd;
  int64_t width;
};

template <class T>
__global__ void norm_backward_kernel(Backward<T> a) {
  extern __shared__ float shared[];
  float *normed = shared, *scaled = shared + a.width;
  __shared__ float reduce[kThreads / 32];
  const int64_t at = blockIdx.x * a.width;
  const float mean = a.mean == nullptr ? 0.0f : a.mean[blockIdx.x], rstd = a.rstd[blockIdx.x];
  float sum_g = 0, sum_gx = 0;
  for (int64_t c = threadIdx.x; c < a.width; c += kThreads) {
    const float x = (to_float(a.inp[at + c]) - mean) * rstd;
    const float g = to_float(a.dout[at + c]) * to_float(a.weight[c]);
    normed[c] = x;
    scaled[c] = g;
    sum_g += g;
    sum_gx += g * x;
  }
  const float width = static_cast<float>(a.width);
  const float mean_gx = block_sum<kThreads>(sum_gx, reduce) / width;
  const float mean_g = a.mean == nullptr ? 0.0f : block_sum<kThreads>(sum_g, reduce) / width;
  for (int64_t c = threadIdx.x; c < a.width; c += kThreads) {
    float dx = rstd * (scaled[c] - mean_g - normed[c] * mean_gx);
    if (a.dresidual != nullptr) dx += to_float(a.dresidual[at + c]);
    a.dinp[at + c] = from_float<T>(dx);
  }
}

template <class T>
struct ParameterGradient {
  const T *dout, *inp;
  const float *mean, *rstd;
  int64_t width;
  __device__ void operator()(int64_t r, int64_t c, float (&v)[2]) const {
    const float dy = to_float(dout[r * width + c]);
    v[0] = dy * (to_float(inp[r * width + c]) - (mean == nullptr ? 0.0f : mean[r])) * rstd[r];
    v[1] = dy;
  }
};

template <class T>
__global__ void residual_add_kernel(T* out, const T* inp, const T* add, const T* bias, int64_t count, int64_t width) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  float sum = to_float(inp[i]) + to_float(add[i]);
  if (bias != nullptr) sum += to_float(bias[i % width]);
  out[i] = from_float<T>(sum);
}

// Long rows need the larger carve-out.
template <class Kernel>
size_t shared_bytes(Kernel kernel, int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (bytes > 40 * 1024)  // the rest of the 48 KiB that need no asking is for static arrays

    TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  return bytes;
}

template <class T>
void forward(const NormForward& n, cudaStream_t stream) {
  const Forward<T> args{pointer<T>(n.out),
                        pointer<T>(n.sum),
                        pointer<T>(n.inp),
                        pointer<T>(n.add),
                        pointer<T>(n.add_bias),
                        pointer<T>(n.weight),
                        pointer<T>(n.bias),
                        pointer<float>(n.mean),
                        pointer<float>(n.rstd),
                        n.inp[1],
                        n.eps};
  norm_forward_kernel<T>
      <<<static_cast<unsigned>(n.inp[0]), kThreads, shared_bytes(norm_forward_kernel<T>, n.inp[1]), stream>>>(args);
  TRI_CUDA_LAUNCH("norm_forward");
}

template <class T>
void backward(const NormBackward& n, cudaStream_t stream) {
  // First the parameters: dinp may overwrite dresidual, but never dout or inp.
  add_column_sums<2>({{pointer<float>(n.dweight), pointer<float>(n.dbias)}}, n.inp[0], n.inp[1],
                     ParameterGradient<T>{pointer<T>(n.dout), pointer<T>(n.inp), pointer<float>(n.mean),
                                          pointer<float>(n.rstd), n.inp[1]},
                     stream);
  const Backward<T> args{pointer<T>(n.dinp),   pointer<T>(n.dresidual), pointer<T>(n.dout),     pointer<T>(n.inp),
                         pointer<T>(n.weight), pointer<float>(n.mean),  pointer<float>(n.rstd), n.inp[1]};
  norm_backward_kernel<T>
      <<<static_cast<unsigned>(n.inp[0]), kThreads, shared_bytes(norm_backward_kernel<T>, 2 * n.inp[1]), stream>>>(
          args);
  TRI_CUDA_LAUNCH("norm_backward");
}

}  // namespace

void norm_forward(const NormForward& n, cudaStream_t stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) { forward<decltype(type)>(n, stream); });
}

void norm_backward(const NormBackward& n, cudaStream_t stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) { backward<decltype(type)>(n, stream); });
}

void residual_add(const ResidualAdd& a, cudaStream_t stream) {
  if (a.inp.numel() == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    residual_add_kernel<T><<<static_cast<unsigned>((a.inp.numel() + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        pointer<T>(a.out), pointer<T>(a.inp), pointer<T>(a.add), pointer<T>(a.add_bias), a.inp.numel(), a.inp[1]);
    TRI_CUDA_LAUNCH("residual_add");
  });
}

}  // namespace tri::cuda
