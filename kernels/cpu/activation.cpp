// The feed-forward activation, the reference.  Formulas and shapes: kernels/activation.h.
// GeLU uses 0.5 · (1 + tanh u) = sigmoid(2u), which keeps its digits as tanh approaches -1, and in the erf form
// 0.5 · (1 + erf u) = 0.5 · erfc(-u).  Bound: the exponential.
#include "kernels/activation.h"

#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

constexpr float kScale = 1.5957691216057308f;  // 2 · sqrt(2/pi)
constexpr float kCubic = 0.044715f;

float gelu(float x) { return x * sigmoid(kScale * (x + kCubic * x * x * x)); }

float gelu_derivative(float x) {
  const float s = sigmoid(kScale * (x + kCubic * x * x * x));
  return s + x * s * (1.0f - s) * kScale * (1.0f + 3.0f * kCubic * x * x);
}

float normal_cdf(float x) { return 0.5f * std::erfc(-0.70710678118654752f * x); }

float gelu_erf(float x) { return x * normal_cdf(x); }

float gelu_erf_derivative(float x) {
  constexpr float kDensity = 0.39894228040143268f;  // 1 / sqrt(2 pi)
  return normal_cdf(x) + x * kDensity * exp_f32(-0.5f * x * x);
}

// Activations of gate x and up u.
struct Swiglu {
  static float forward(float x, float u) { return x * sigmoid(x) * u; }
  static void backward(float x, float u, float dy, float& dx, float& du) {
    const float s = sigmoid(x);
    dx = dy * u * s * (1.0f + x * (1.0f - s));
    du = dy * x * s;
  }
};
struct Geglu {
  static float forward(float x, float u) { return gelu(x) * u; }
  static void backward(float x, float u, float dy, float& dx, float& du) {
    dx = dy * u * gelu_derivative(x);
    du = dy * gelu(x);
  }
};

template <class T, class Kind>
void gated(const ActivationForward& a) {
  const int64_t rows = a.out[0], width = a.out[1];
  for (int64_t r = 0; r < rows; ++r) {
    const T* __restrict gate = a.inp.as<T>() + r * 2 * width;
    const T* __restrict up = gate + width;
    T* __restrict out = a.out.as<T>() + r * width;
    for (int64_t i = 0; i < width; ++i) out[i] = from_float<T>(Kind::forward(to_float(gate[i]), to_float(up[i])));
  }
}

template <class T, class Kind>
void gated_backward(const ActivationBackward& a) {
  const int64_t rows = a.dout[0], width = a.dout[1];
  for (int64_t r = 0; r < rows; ++r) {
    const T *gate = a.inp.as<T>() + r * 2 * width, *up = gate + width, *dout = a.dout.as<T>() + r * width;
    T *dgate = a.dinp.as<T>() + r * 2 * width, *dup = dgate + width;
#pragma GCC ivdep  // dinp may be inp: element i is read before it is written
    for (int64_t i = 0; i < width; ++i) {
      float dx, du;
      Kind::backward(to_float(gate[i]), to_float(up[i]), to_float(dout[i]), dx, du);
      dgate[i] = from_float<T>(dx);
      dup[i] = from_float<T>(du);
    }
  }
}

// Without a gate: `derivative` of each element.
template <class T, class Derivative>
void plain_backward(const ActivationBackward& a, Derivative derivative) {
  const T *inp = a.inp.as<T>(), *dout = a.dout.as<T>();
  T* dinp = a.dinp.as<T>();
  const int64_t count = a.inp.numel();
#pragma GCC ivdep  // dinp may be inp: element i is read before it is written
  for (int64_t i = 0; i < count; ++i) dinp[i] = from_float<T>(to_float(dout[i]) * derivative(to_float(inp[i])));
}

template <class T, class Function>
void plain(const ActivationForward& a, Function function) {
  const T* __restrict inp = a.inp.as<T>();
  T* __restrict out = a.out.as<T>();
  const int64_t count = a.inp.numel();
  for (int64_t i = 0; i < count; ++i) out[i] = from_float<T>(function(to_float(inp[i])));
}

}  // namespace

void activation_forward(const ActivationForward& all) {
  const ActivationForward a{
      .kind = all.kind, .out = first_rows(all.out, all.used), .inp = first_rows(all.inp, all.used)};
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    switch (a.kind) {
      case Activation::kGelu:
        return plain<T>(a, [](float x) { return gelu(x); });
      case Activation::kGeluErf:
        return plain<T>(a, [](float x) { return gelu_erf(x); });
      case Activation::kSwiglu:
        return gated<T, Swiglu>(a);
      case Activation::kGeglu:
        return gated<T, Geglu>(a);
    }
  });
}

void activation_backward(const ActivationBackward& all) {
  const ActivationBackward a{.kind = all.kind,
                             .dinp = first_rows(all.dinp, all.used),
                             .dout = first_rows(all.dout, all.used),
                             .inp = first_rows(all.inp, all.used)};
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    switch (a.kind) {
      case Activation::kGelu:
        return plain_backward<T>(a, [](float x) { return gelu_derivative(x); });
      case Activation::kGeluErf:
        return plain_backward<T>(a, [](float x) { return gelu_erf_derivative(x); });
      case Activation::kSwiglu:
        return gated_backward<T, Swiglu>(a);
      case Activation::kGeglu:
        return gated_backward<T, Geglu>(a);
    }
  });
}

}  // namespace tri::cpu
