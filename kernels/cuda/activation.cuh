// GeLU (both forms), SwiGLU and GeGLU of one element: formulas in kernels/activation.h. kInputs is 1, or 2 (gate, up).
#pragma once

#include "kernels/cuda/device_math.cuh"

namespace tri::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// The tanh form: (1 + tanh(u)) / 2 = sigmoid(2u), and 2u = x (kLinear + kCubic x²).
struct Gelu {
  static constexpr int kInputs = 1;
  static constexpr float kLinear = 1.5957691216057308f, kCubic = 0.044715f * kLinear;
  __device__ static float sigmoid_of(float x, float square) {
    return __fdividef(1.0f, 1.0f + exp2_fast(x * fmaf(-kLog2E * kCubic, square, -kLog2E * kLinear)));
  }
  __device__ static float forward(const float (&x)[1]) { return x[0] * sigmoid_of(x[0], x[0] * x[0]); }
  __device__ static void backward(const float (&x)[1], float dy, float (&dx)[1]) {
    const float square = x[0] * x[0], s = sigmoid_of(x[0], square);
    dx[0] = dy * fmaf(fmaf(-s, s, s), x[0] * fmaf(3.0f * kCubic, square, kLinear), s);
  }
};

// The erf form: x Φ(x), whose derivative is Φ(x) + x φ(x).
struct GeluErf {
  static constexpr int kInputs = 1;
  static constexpr float kDensity = 0.39894228040143268f;  // φ(0) = 1 / sqrt(2 pi)
  __device__ static float forward(const float (&x)[1]) { return x[0] * normcdff(x[0]); }
  __device__ static void backward(const float (&x)[1], float dy, float (&dx)[1]) {
    const float density = kDensity * exp2_fast(-0.5f * kLog2E * x[0] * x[0]);
    dx[0] = dy * fmaf(x[0], density, normcdff(x[0]));
  }
};

struct Swiglu {
  static constexpr int kInputs = 2;
  __device__ static float forward(const float (&x)[2]) { return x[0] * sigmoid(x[0]) * x[1]; }
  __device__ static void backward(const float (&x)[2], float dy, float (&dx)[2]) {
    const float s = sigmoid(x[0]);
    dx[0] = dy * x[1] * s * (1.0f + x[0] * (1.0f - s));
    dx[1] = dy * x[0] * s;
  }
};

struct Geglu {
  static constexpr int kInputs = 2;
  __device__ static float forward(const float (&x)[2]) { return Gelu::forward({x[0]}) * x[1]; }
  __device__ static void backward(const float (&x)[2], float dy, float (&dx)[2]) {
    float gate[1];
    Gelu::backward({x[0]}, dy * x[1], gate);
    dx[0] = gate[0];
    dx[1] = dy * Gelu::forward({x[0]});
  }
};

}  // namespace tri::cuda
