// GeLU (both forms), SwiGLU and GeGLU, forward and backward: formulas in kernels/activation.h.
//   inp (R, F) or (R, 2F), out (R, F) bf16|f32
// Mapping: one thread per 16-byte pack of the output if F allows, otherwise per element.
// Bound: memory, each element once.  Reference: kernels/cpu/activation.cpp.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, class Kind, int kPack>
__global__ void forward_kernel(T* out, const T* inp, int64_t packs, int64_t width, const int32_t* used) {
  const int64_t pack = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (pack >= packs) return;
  const int64_t at = pack * kPack, r = at / width, c = at % width;
  if (used != nullptr && r >= *used) return;
  Pack<T, kPack> in[Kind::kInputs], y;
  for (int k = 0; k < Kind::kInputs; ++k) in[k] = load_pack<kPack>(inp + (r * Kind::kInputs + k) * width + c);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    float x[Kind::kInputs];
    for (int k = 0; k < Kind::kInputs; ++k) x[k] = to_float(in[k].item[i]);
    y.item[i] = from_float<T>(Kind::forward(x));
  }
  store_pack(out + at, y);
}

template <class T, class Kind, int kPack>
__global__ void backward_kernel(T* dinp, const T* dout, const T* inp, int64_t packs, int64_t width,
                                const int32_t* used) {
  const int64_t pack = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (pack >= packs) return;
  const int64_t at = pack * kPack, r = at / width, c = at % width;
  if (used != nullptr && r >= *used) return;
  Pack<T, kPack> in[Kind::kInputs], din[Kind::kInputs];
  for (int k = 0; k < Kind::kInputs; ++k) in[k] = load_pack<kPack>(inp + (r * Kind::kInputs + k) * width + c);
  const Pack<T, kPack> dy = load_pack<kPack>(dout + at);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    float x[Kind::kInputs], dx[Kind::kInputs];
    for (int k = 0; k < Kind::kInputs; ++k) x[k] = to_float(in[k].item[i]);
    Kind::backward(x, to_float(dy.item[i]), dx);
    for (int k = 0; k < Kind::kInputs; ++k) din[k].item[i] = from_float<T>(dx[k]);
  }
  for (int k = 0; k < Kind::kInputs; ++k) store_pack(dinp + (r * Kind::kInputs + k) * width + c, din[k]);
}

template <class T, class Kind>
void forward(const ActivationForward& a, CudaStream& stream) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t count = a.out.numel(), width = a.out[1];
  const bool packed = aligned<T>(width, {a.out, a.inp});
  const int64_t packs = packed ? count / kPack : count;
  const auto blocks = static_cast<unsigned>((packs + kThreads - 1) / kThreads);
  auto kernel = packed ? forward_kernel<T, Kind, kPack> : forward_kernel<T, Kind, 1>;
  kernel<<<blocks, kThreads, 0, stream>>>(pointer<T>(a.out), pointer<T>(a.inp), packs, width, pointer<int32_t>(a.used));
  TRI_CUDA_LAUNCH("activation_forward");
}

template <class T, class Kind>
void backward(const ActivationBackward& a, CudaStream& stream) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t count = a.dout.numel(), width = a.dout[1];
  const bool packed = aligned<T>(width, {a.dout, a.inp, a.dinp});
  const int64_t packs = packed ? count / kPack : count;
  const auto blocks = static_cast<unsigned>((packs + kThreads - 1) / kThreads);
  auto kernel = packed ? backward_kernel<T, Kind, kPack> : backward_kernel<T, Kind, 1>;
  kernel<<<blocks, kThreads, 0, stream>>>(pointer<T>(a.dinp), pointer<T>(a.dout), pointer<T>(a.inp), packs, width,
                                          pointer<int32_t>(a.used));
  TRI_CUDA_LAUNCH("activation_backward");
}

}  // namespace

void activation_forward(const ActivationForward& a, CudaStream& stream) {
  if (a.out.numel() == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    switch (a.kind) {
      case Activation::kGelu:
        return forward<T, Gelu>(a, stream);
      case Activation::kGeluErf:
        return forward<T, GeluErf>(a, stream);
      case Activation::kSwiglu:
        return forward<T, Swiglu>(a, stream);
      case Activation::kGeglu:
        return forward<T, Geglu>(a, stream);
    }
  });
}

void activation_backward(const ActivationBackward& a, CudaStream& stream) {
  if (a.dout.numel() == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    switch (a.kind) {
      case Activation::kGelu:
        return backward<T, Gelu>(a, stream);
      case Activation::kGeluErf:
        return backward<T, GeluErf>(a, stream);
      case Activation::kSwiglu:
        return backward<T, Swiglu>(a, stream);
      case Activation::kGeglu:
        return backward<T, Geglu>(a, stream);
    }
  });
}

}  // namespace tri::cuda
