// QK-norm and rotary position embedding, the reference.  Formulas and shapes: kernels/qk_norm_rope.h.  Bound: memory.
#include "kernels/qk_norm_rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Loads x (HS) into fp32, multiplies it by rstd, and returns rstd.
template <class T>
float normalize(float* x, const T* from, int64_t head_size, float eps) {
  double squares = 0;
  for (int64_t i = 0; i < head_size; ++i) {
    x[i] = to_float(from[i]);
    squares += double{x[i]} * x[i];
  }
  const float rstd = 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(head_size)) + eps);
  for (int64_t i = 0; i < head_size; ++i) x[i] *= rstd;
  return rstd;
}

// Rotates x (HS) in place by `angles` (HS/2, 2), or back if sign is -1.
void rotate(float* x, const float* angles, int64_t half, float sign) {
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = angles[2 * i], sine = sign * angles[2 * i + 1], x1 = x[i], x2 = x[half + i];
    x[i] = x1 * cosine - x2 * sine;
    x[half + i] = x2 * cosine + x1 * sine;
  }
}

// Calls head(offset in a `to` row, offset in a `from` row, whether it is a query) for each query and key of a row.
template <class F>
void for_each_query_and_key(const QkvRow& to, const QkvRow& from, int num_kv_heads, int group, F&& head) {
  for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    for (int g = 0; g < group; ++g) head(to.query(kv_head, g), from.query(kv_head, g), true);
    head(to.key(kv_head), from.key(kv_head), false);
  }
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeForward& n) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t seq_len = n.table[0], half = n.table[1], head_size = 2 * half;
    const QkvRow to = qkv_row(n.out_order, n.num_kv_heads, n.group, static_cast<int>(head_size));
    const QkvRow from = qkv_row(n.inp_order, n.num_kv_heads, n.group, static_cast<int>(head_size));
    std::vector<float> x(static_cast<size_t>(head_size));
    for (int64_t row = 0; row < n.inp[0]; ++row) {
      T* out = n.out.as<T>() + row * to.width;
      const T* inp = n.inp.as<T>() + row * from.width;
      const float* angles = n.table.as<float>() + row % seq_len * head_size;
      for_each_query_and_key(to, from, n.num_kv_heads, n.group, [&](int to_at, int from_at, bool is_query) {
        const T* weight = (is_query ? n.query_weight : n.key_weight).as<T>();
        normalize(x.data(), inp + from_at, head_size, n.eps);
        for (int64_t i = 0; i < head_size; ++i) x[static_cast<size_t>(i)] *= to_float(weight[i]) + n.offset;
        rotate(x.data(), angles, half, 1);
        for (int64_t i = 0; i < head_size; ++i) out[to_at + i] = from_float<T>(x[static_cast<size_t>(i)]);
      });
      for (int kv_head = 0; kv_head < n.num_kv_heads; ++kv_head)
        std::copy_n(inp + from.value(kv_head), head_size, out + to.value(kv_head));
    }
  });
}

void qk_norm_rope_backward(const QkNormRopeBackward& n) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t seq_len = n.table[0], half = n.table[1], head_size = 2 * half;
    const QkvRow to = qkv_row(n.dinp_order, n.num_kv_heads, n.group, static_cast<int>(head_size));
    const QkvRow from = qkv_row(n.dout_order, n.num_kv_heads, n.group, static_cast<int>(head_size));
    std::vector<float> x(static_cast<size_t>(head_size)), g(static_cast<size_t>(head_size));
    for (int64_t row = 0; row < n.inp[0]; ++row) {
      T* dinp = n.dinp.as<T>() + row * to.width;
      const T* inp = n.inp.as<T>() + row * to.width;
      const T* dout = n.dout.as<T>() + row * from.width;
      const float* angles = n.table.as<float>() + row % seq_len * head_size;
      for_each_query_and_key(to, from, n.num_kv_heads, n.group, [&](int to_at, int from_at, bool is_query) {
        const T* weight = (is_query ? n.query_weight : n.key_weight).as<T>();
        float* dweight = (is_query ? n.dquery_weight : n.dkey_weight).template as<float>();
        const float rstd = normalize(x.data(), inp + to_at, head_size, n.eps);
        for (int64_t i = 0; i < head_size; ++i) g[static_cast<size_t>(i)] = to_float(dout[from_at + i]);
        rotate(g.data(), angles, half, -1);
        double product = 0;  // of g · weight and x · rstd
        for (size_t i = 0; i < g.size(); ++i) {
          dweight[i] += g[i] * x[i];
          g[i] *= to_float(weight[i]) + n.offset;
          product += double{g[i]} * x[i];
        }
        const float mean = static_cast<float>(product / static_cast<double>(head_size));
        for (size_t i = 0; i < g.size(); ++i)
          dinp[to_at + static_cast<int64_t>(i)] = from_float<T>(rstd * (g[i] - x[i] * mean));
      });
      if (dinp == dout) continue;
      for (int kv_head = 0; kv_head < n.num_kv_heads; ++kv_head)
        std::copy_n(dout + from.value(kv_head), head_size, dinp + to.value(kv_head));
    }
  });
}

}  // namespace tri::cpu
