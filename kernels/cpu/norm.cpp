#include <cmath>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Sum of f(i) over [0, n) in eight interleaved lanes: a fixed order that vectorises.
template <class F>
float lane_sum(int64_t n, F&& f) {
  float lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += f(i + lane);
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += f(i);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

template <class T>
void forward(const NormForward& n) {
  const int64_t rows = n.inp[0], width = n.inp[1];
  const bool layernorm = n.kind == Norm::kLayerNorm;
  const T *inp = n.inp.as<T>(), *add = n.add.as<T>(), *add_bias = n.add_bias.as<T>();
  const T *weight = n.weight.as<T>(), *bias = n.bias.as<T>();
  T *out = n.out.as<T>(), *sum = n.sum.as<T>();
  std::vector<float> row(static_cast<size_t>(width));
  float* x = row.data();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * width;
    for (int64_t c = 0; c < width; ++c) x[c] = to_float(inp[at + c]);
    if (add != nullptr) {
      for (int64_t c = 0; c < width; ++c) x[c] += to_float(add[at + c]);
      if (add_bias != nullptr)
        for (int64_t c = 0; c < width; ++c) x[c] += to_float(add_bias[c]);
      for (int64_t c = 0; c < width; ++c) {
        sum[at + c] = from_float<T>(x[c]);
        x[c] = to_float(sum[at + c]);  // what backward will see
      }
    }
    const float mean = layernorm ? lane_sum(width, [&](int64_t c) { return x[c]; }) / static_cast<float>(width) : 0.0f;
    const float square = lane_sum(width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
    const float rstd = 1.0f / std::sqrt(square / static_cast<float>(width) + n.eps);
    if (layernorm) n.mean.as<float>()[r] = mean;
    n.rstd.as<float>()[r] = rstd;
    for (int64_t c = 0; c < width; ++c) {
      const float scaled = (x[c] - mean) * rstd * to_float(weight[c]);
      out[at + c] = from_float<T>(bias == nullptr ? scaled : scaled + to_float(bias[c]));
    }
  }
}

// With x̂ = (x - mean)·rstd and g = dout·weight:  dx = rstd · (g - mean(g) - x̂·mean(g·x̂)); RMSNorm lacks mean(g).
template <class T>
void backward(const NormBackward& n) {
  const int64_t rows = n.inp[0], width = n.inp[1];
  const bool layernorm = n.kind == Norm::kLayerNorm;
  const T *inp = n.inp.as<T>(), *dout = n.dout.as<T>(), *weight = n.weight.as<T>(), *dresidual = n.dresidual.as<T>();
  T* dinp = n.dinp.as<T>();
  float *dweight = n.dweight.as<float>(), *dbias = n.dbias.as<float>();
  std::vector<float> normed(static_cast<size_t>(width)), scaled(static_cast<size_t>(width));
  float *x = normed.data(), *g = scaled.data();
  const float inverse = 1.0f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * width;
    const float mean = layernorm ? n.mean.as<float>()[r] : 0.0f, rstd = n.rstd.as<float>()[r];
    for (int64_t c = 0; c < width; ++c) {
      const float dy = to_float(dout[at + c]);
      x[c] = (to_float(inp[at + c]) - mean) * rstd;
      g[c] = dy * to_float(weight[c]);
      dweight[c] += dy * x[c];
    }
    if (dbias != nullptr)
      for (int64_t c = 0; c < width; ++c) dbias[c] += to_float(dout[at + c]);
    const float mean_g = layernorm ? inverse * lane_sum(width, [&](int64_t c) { return g[c]; }) : 0.0f;
    const float mean_gx = inverse * lane_sum(width, [&](int64_t c) { return g[c] * x[c]; });
    for (int64_t c = 0; c < width; ++c) {
      const float residual = dresidual == nullptr ? 0.0f : to_float(dresidual[at + c]);
      dinp[at + c] = from_float<T>(residual + rstd * (g[c] - mean_g - x[c] * mean_gx));
    }
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
    const T *inp = a.inp.as<T>(), *add = a.add.as<T>(), *bias = a.add_bias.as<T>();
    T* out = a.out.as<T>();
    const int64_t rows = a.inp[0], width = a.inp[1];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c) {
        const float sum = to_float(inp[r * width + c]) + to_float(add[r * width + c]);
        out[r * width + c] = from_float<T>(bias == nullptr ? sum : sum + to_float(bias[c]));
      }
  });
}

}  // namespace tri::cpu
