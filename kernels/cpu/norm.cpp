// Residual sum and normalisation, the reference.  Formulas and shapes: kernels/norm.h.
// Processes one row at a time, in fp32. The variance is computed around the mean in a second pass, so a large mean
// costs it no digits.  Bound: memory, the bytes of the operands once.
#include "kernels/norm.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Returns the sum of f(i) over [0, n) in interleaved lanes, a fixed order that vectorises.
template <class F>
float lane_sum(int64_t n, F&& f) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += f(i);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

// Loads row r of an operand (R, C) or (P, R, C) in fp32: the sum of the parts in order, rounded to storage.
template <class T>
void load_parts(const Tensor& operand, int64_t r, int64_t rows, int64_t width, float* __restrict x) {
  const int64_t parts = num_parts(operand);
  const T* __restrict part = operand.as<T>() + r * width;
  for (int64_t c = 0; c < width; ++c) x[c] = to_float(part[c]);
  for (int64_t p = 1; p < parts; ++p) {
    part += rows * width;
    for (int64_t c = 0; c < width; ++c) x[c] += to_float(part[c]);
  }
  if (parts > 1)
    for (int64_t c = 0; c < width; ++c) x[c] = to_float(from_float<T>(x[c]));
}

// x <- inp + add + add_bias in fp32. With `add`, x is rounded to storage and saved in `sum`, as backward will read it.
template <class T>
void load_row(const NormForward& n, int64_t r, float* __restrict x) {
  const int64_t width = n.inp[1], first = r * width;
  const T* __restrict inp = n.inp.as<T>() + first;
  if (n.add.empty()) {
    for (int64_t c = 0; c < width; ++c) x[c] = to_float(inp[c]);
    return;
  }
  load_parts<T>(n.add, r, n.inp[0], width, x);
  for (int64_t c = 0; c < width; ++c) x[c] = to_float(inp[c]) + x[c];
  if (!n.add_bias.empty()) {
    const T* __restrict add_bias = n.add_bias.as<T>();
    for (int64_t c = 0; c < width; ++c) x[c] += to_float(add_bias[c]);
  }
  T* sum = n.sum.as<T>() + first;
  for (int64_t c = 0; c < width; ++c) {
    sum[c] = from_float<T>(x[c]);
    x[c] = to_float(from_float<T>(x[c]));
  }
}

template <class T>
void forward(const NormForward& n) {
  const int64_t rows = n.inp[0], width = n.inp[1];
  const bool layernorm = n.kind == Norm::kLayerNorm;
  const T* __restrict weight = n.weight.as<T>();
  const T* __restrict bias = n.bias.as<T>();
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<size_t>(width));
  float* __restrict x = scratch.data();
  for (int64_t r = 0; r < rows; ++r) {
    load_row<T>(n, r, x);
    const float mean = layernorm ? lane_sum(width, [&](int64_t c) { return x[c]; }) / static_cast<float>(width) : 0.0f;
    const float squares = lane_sum(width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(width) + n.eps);
    if (layernorm) n.mean.as<float>()[r] = mean;
    n.rstd.as<float>()[r] = rstd;
    T* __restrict out = n.out.as<T>() + r * width;
    for (int64_t c = 0; c < width; ++c) x[c] = (x[c] - mean) * rstd * (to_float(weight[c]) + n.offset);
    if (bias != nullptr)
      for (int64_t c = 0; c < width; ++c) x[c] += to_float(bias[c]);
    for (int64_t c = 0; c < width; ++c) out[c] = from_float<T>(x[c]);
  }
}

// With x^ = (x - mean) · rstd and g = dout · weight:  dx = rstd · (g - mean_c(g) - x^ · mean_c(g · x^));
// RMSNorm lacks the term mean_c(g).
template <class T>
void backward(const NormBackward& n) {
  const int64_t rows = n.inp[0], width = n.inp[1];
  const bool layernorm = n.kind == Norm::kLayerNorm;
  const T* __restrict weight = n.weight.as<T>();
  float* __restrict dweight = n.dweight.as<float>();
  float* __restrict dbias = n.dbias.as<float>();
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<size_t>(3 * width));
  float* __restrict x = scratch.data();  // x^
  float* __restrict g = x + width;       // g, then dx
  float* __restrict dout = g + width;
  const float inverse = 1.0f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const T* __restrict inp = n.inp.as<T>() + r * width;
    load_parts<T>(n.dout, r, rows, width, dout);
    const float mean = layernorm ? n.mean.as<float>()[r] : 0.0f, rstd = n.rstd.as<float>()[r];
    for (int64_t c = 0; c < width; ++c) {
      x[c] = (to_float(inp[c]) - mean) * rstd;
      g[c] = dout[c] * (to_float(weight[c]) + n.offset);
    }
    for (int64_t c = 0; c < width; ++c) dweight[c] += dout[c] * x[c];
    if (dbias != nullptr)
      for (int64_t c = 0; c < width; ++c) dbias[c] += dout[c];
    const float mean_g = layernorm ? inverse * lane_sum(width, [&](int64_t c) { return g[c]; }) : 0.0f;
    const float mean_gx = inverse * lane_sum(width, [&](int64_t c) { return g[c] * x[c]; });
    for (int64_t c = 0; c < width; ++c) g[c] = rstd * (g[c] - mean_g - x[c] * mean_gx);
    // dresidual may be dinp: no loop both reads one and writes the other.
    const T* dresidual = n.dresidual.as<T>();
    if (dresidual != nullptr)
      for (int64_t c = 0; c < width; ++c) g[c] += to_float(dresidual[r * width + c]);
    T* dinp = n.dinp.as<T>() + r * width;
    for (int64_t c = 0; c < width; ++c) dinp[c] = from_float<T>(g[c]);
  }
}

}  // namespace

void norm_forward(const NormForward& n) {
  dispatch(n.inp.dtype, [&](auto type) { forward<decltype(type)>(n); });
}

void norm_backward(const NormBackward& n) {
  dispatch(n.inp.dtype, [&](auto type) { backward<decltype(type)>(n); });
}

void residual_add(const ResidualAdd& a) {
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const T *inp = a.inp.as<T>(), *bias = a.add_bias.as<T>();
    T* out = a.out.as<T>();
    const int64_t rows = a.inp[0], width = a.inp[1];
    std::vector<float> add(static_cast<size_t>(width));
    for (int64_t r = 0; r < rows; ++r, inp += width, out += width) {
      load_parts<T>(a.add, r, rows, width, add.data());
#pragma GCC ivdep  // out may be inp: element c is read before it is written
      for (int64_t c = 0; c < width; ++c) {
        const float sum = to_float(inp[c]) + add[static_cast<size_t>(c)];
        out[c] = from_float<T>(bias == nullptr ? sum : sum + to_float(bias[c]));
      }
    }
  });
}

}  // namespace tri::cpu
