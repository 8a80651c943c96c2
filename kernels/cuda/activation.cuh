// GeLU and SwiGLU of one element: formulas in kernels/activation.h. kInputs: 1, or 2 (gate, up).
#pragma once

namespace tri::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// (1 + tanh(u)) / 2 = sigmoid(2u)
struct Gelu {
  static constexpr int kInputs = 1;
  static constexpr float kScale = 0.7978845608028654f, kCubic = 0.044715f;  // the tanh form
  __device__ static float forward(const float (&x)[1]) {
    return x[0] * sigmoid(2.0f * kScale * (x[0] + kCubic * x[0] * x[0] * x[0]));
  }
  __device__ static void backward(const float (&x)[1], float dy, float (&dx)[1]) {
    const float s = sigmoid(2.0f * kScale * (x[0] + kCubic * x[0] * x[0] * x[0]));
    dx[0] = dy * (s + x[0] * s * (1.0f - s) * 2.0f * kScale * (1.0f + 3.0f * kCubic * x[0] * x[0]));
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

}  // namespace tri::cuda
