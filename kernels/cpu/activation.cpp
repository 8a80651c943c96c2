#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

constexpr float kGeluScale = 0.7978845608028654f;  // sqrt(2/pi)
constexpr float kGeluCubic = 0.044715f;

float gelu(float x) { return 0.5f * x * (1.0f + tanh_f32(kGeluScale * (x + kGeluCubic * x * x * x))); }

float gelu_derivative(float x) {
  const float t = tanh_f32(kGeluScale * (x + kGeluCubic * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kGeluScale * (1.0f + 3.0f * kGeluCubic * x * x);
}

}  // namespace

void activation_forward(const ActivationForward& a) {
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const T* inp = a.inp.as<T>();
    T* out = a.out.as<T>();
    const int64_t rows = a.out[0], width = a.out[1];
    if (a.kind == Activation::kGelu) {
      for (int64_t i = 0; i < rows * width; ++i) out[i] = from_float<T>(gelu(to_float(inp[i])));
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const T *gate = inp + r * 2 * width, *up = gate + width;
      for (int64_t i = 0; i < width; ++i) {
        const float x = to_float(gate[i]);
        out[r * width + i] = from_float<T>(x * sigmoid(x) * to_float(up[i]));
      }
    }
  });
}

void activation_backward(const ActivationBackward& a) {
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const T *inp = a.inp.as<T>(), *dout = a.dout.as<T>();
    T* dinp = a.dinp.as<T>();
    const int64_t rows = a.dout[0], width = a.dout[1];
    if (a.kind == Activation::kGelu) {
      for (int64_t i = 0; i < rows * width; ++i)
        dinp[i] = from_float<T>(to_float(dout[i]) * gelu_derivative(to_float(inp[i])));
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const T *gate = inp + r * 2 * width, *up = gate + width;
      T *dgate = dinp + r * 2 * width, *dup = dgate + width;
      for (int64_t i = 0; i < width; ++i) {
        const float x = to_float(gate[i]), u = to_float(up[i]), dy = to_float(dout[r * width + i]);
        const float s = sigmoid(x);
        dgate[i] = from_float<T>(dy * u * s * (1.0f + x * (1.0f - s)));
        dup[i] = from_float<T>(dy * x * s);
      }
    }
  });
}

}  // namespace tri::cpu
