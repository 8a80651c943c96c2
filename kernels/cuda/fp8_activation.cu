// GeLU and SwiGLU and their gradients, cast to FP8 as they are computed: formulas in kernels/activation.h, fp8.h.
//   inp (R, F) or (R, 2F), dout (R, F) bf16|f32    out, out_t e4m3|e5m2
// Mapping: fp8_cast.cuh.  Bound: memory; backward reads dout and inp and writes two bytes per element of inp.
// Reference: kernels/cpu/fp8.cpp. The quantized values equal those of fp8_cast after activation.cu, bit for bit.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/fp8_launch.cuh"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

// Sources of fp8_cast.cuh. `width`: F.

template <class T, class Kind>
struct Activated {
  using Type = T;
  static constexpr bool kFlat = Kind::kInputs == 1;
  static constexpr int kParts = 1;
  const T* inp;
  int64_t width;
  template <int kElements>
  __device__ Pack<T, kElements> at(int64_t r, int64_t c) const {
    float x[Kind::kInputs][kElements], y[kElements];
#pragma unroll
    for (int k = 0; k < Kind::kInputs; ++k)
      unpack(load_pack<kElements>(inp + (r * Kind::kInputs + k) * width + c), x[k]);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float of_one[Kind::kInputs];
#pragma unroll
      for (int k = 0; k < Kind::kInputs; ++k) of_one[k] = x[k][i];
      y[i] = Kind::forward(of_one);
    }
    return pack_floats<T>(y);
  }
};

template <class T, class Kind>
struct PlainGradient {
  using Type = T;
  static constexpr bool kFlat = true;
  static constexpr int kParts = 1;
  const T *dout, *inp;
  int64_t width;
  template <int kElements>
  __device__ Pack<T, kElements> at(int64_t r, int64_t c) const {
    float x[kElements], dy[kElements];
    unpack(load_pack<kElements>(inp + r * width + c), x);
    unpack(load_pack<kElements>(dout + r * width + c), dy);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float dx[1];
      Kind::backward({x[i]}, dy[i], dx);
      x[i] = dx[0];
    }
    return pack_floats<T>(x);
  }
};

// Columns [0, F) are the gradient of gate, [F, 2F) that of up.
template <class T, class Kind>
struct GatedGradient {
  using Type = T;
  static constexpr bool kFlat = false;
  static constexpr int kParts = 2;
  const T *dout, *inp;
  int64_t width;
  template <int kElements>
  __device__ Pack<T, kElements> at(int64_t r, int64_t c) const {
    const bool is_up = c >= width;
    Pack<T, kElements> of[kParts];
    parts(r, is_up ? c - width : c, of);
    return is_up ? of[1] : of[0];
  }
  template <int kElements>
  __device__ void parts(int64_t r, int64_t c, Pack<T, kElements> (&gradients)[kParts]) const {
    const T* const row = inp + 2 * r * width + c;
    float gate[kElements], up[kElements], dy[kElements];
    unpack(load_pack<kElements>(row), gate);
    unpack(load_pack<kElements>(row + width), up);
    unpack(load_pack<kElements>(dout + r * width + c), dy);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float dx[2];
      Kind::backward({gate[i], up[i]}, dy[i], dx);
      gate[i] = dx[0];
      up[i] = dx[1];
    }
    gradients[0] = pack_floats<T>(gate);
    gradients[1] = pack_floats<T>(up);
  }
};

// Returns whether rows of F elements of T can be read in runs.
template <class T>
bool wide(int64_t width, std::initializer_list<Tensor> tensors) {
  return width % kRun == 0 && aligned<T>(width, tensors);
}

}  // namespace

void fp8_activation_forward(const Fp8ActivationForward& a, CudaStream& stream) {
  if (a.inp.numel() == 0) return;
  const int64_t rows = a.inp[0], width = is_gated(a.kind) ? a.inp[1] / 2 : a.inp[1];
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const T* inp = pointer<T>(a.inp);
    const bool runs = wide<T>(width, {a.inp});
    switch (a.kind) {
      case Activation::kGelu:
        return launch_cast(Activated<T, Gelu>{inp, width}, runs, a.cast, rows, width, stream);
      case Activation::kGeluErf:
        return launch_cast(Activated<T, GeluErf>{inp, width}, runs, a.cast, rows, width, stream);
      case Activation::kSwiglu:
        return launch_cast(Activated<T, Swiglu>{inp, width}, runs, a.cast, rows, width, stream);
      case Activation::kGeglu:
        return launch_cast(Activated<T, Geglu>{inp, width}, runs, a.cast, rows, width, stream);
    }
  });
  TRI_CUDA_LAUNCH("fp8_activation_forward");
}

void fp8_activation_backward(const Fp8ActivationBackward& a, CudaStream& stream) {
  if (a.dout.numel() == 0) return;
  const int64_t rows = a.dout[0], width = a.dout[1];
  dispatch(a.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T *dout = pointer<T>(a.dout), *inp = pointer<T>(a.inp);
    const bool runs = wide<T>(width, {a.dout, a.inp});
    switch (a.kind) {
      case Activation::kGelu:
        return launch_cast(PlainGradient<T, Gelu>{dout, inp, width}, runs, a.cast, rows, width, stream);
      case Activation::kGeluErf:
        return launch_cast(PlainGradient<T, GeluErf>{dout, inp, width}, runs, a.cast, rows, width, stream);
      case Activation::kSwiglu:
        return launch_cast(GatedGradient<T, Swiglu>{dout, inp, width}, runs, a.cast, rows, 2 * width, stream);
      case Activation::kGeglu:
        return launch_cast(GatedGradient<T, Geglu>{dout, inp, width}, runs, a.cast, rows, 2 * width, stream);
    }
  });
  TRI_CUDA_LAUNCH("fp8_activation_backward");
}

}  // namespace tri::cuda
