// QK-norm over the full width and rotary position embedding, the reference.  Formulas and shapes:
// kernels/qk_norm_full.h.  Bound: memory.
#include "kernels/qk_norm_full.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// The heads of the rows `from` and `to`, which may be in different orders.
struct Heads {
  int kv_heads, group;
  QkvRow to, from;

  // Calls head(offset in a `to` row, offset in a `from` row, kind: 0 for queries and 1 for keys, index among them) for
  // each query and key of a row.
  template <class F>
  void for_each(F&& head) const {
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (int g = 0; g < group; ++g) head(to.query(kv_head, g), from.query(kv_head, g), 0, kv_head * group + g);
      head(to.key(kv_head), from.key(kv_head), 1, kv_head);
    }
  }
  template <class T>
  void copy_values(T* out, const T* inp) const {
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head)
      std::copy_n(inp + from.value(kv_head), from.head_size, out + to.value(kv_head));
  }
};

template <class Op>
Heads heads_of(const Op& n, QkvOrder to, QkvOrder from) {
  const auto head_size = static_cast<int>(n.inp[1] / (int64_t{n.num_kv_heads} * (n.group + 2)));
  return {n.num_kv_heads, n.group, qkv_row(to, n.num_kv_heads, n.group, head_size),
          qkv_row(from, n.num_kv_heads, n.group, head_size)};
}

// Rotates x (HS) in place by `angles` (HS/2, 2), or back if sign is -1.
void rotate(std::vector<float>& x, const float* angles, float sign) {
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const float cosine = angles[2 * i], sine = sign * angles[2 * i + 1], x1 = x[i], x2 = x[half + i];
    x[i] = x1 * cosine - x2 * sine;
    x[half + i] = x2 * cosine + x1 * sine;
  }
}

template <class Op>
const float* angles_of(const Op& n, int64_t row) {
  return n.table.template as<float>() + row % n.table[0] * 2 * n.table[1];
}

}  // namespace

void qk_norm_squares(const QkNormSquares& n) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const Heads heads = heads_of(n, n.order, n.order);
    for (int64_t row = 0; row < n.inp[0]; ++row) {
      const T* inp = n.inp.as<T>() + row * heads.from.width;
      double sums[2] = {};
      heads.for_each([&](int, int at, int kind, int) {
        for (int i = 0; i < heads.from.head_size; ++i) {
          const double x = to_float(inp[at + i]);
          sums[kind] += x * x;
        }
      });
      for (int kind = 0; kind < 2; ++kind) n.sums.as<float>()[2 * row + kind] = static_cast<float>(sums[kind]);
    }
  });
}

void qk_norm_full_forward(const QkNormFullForward& n) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const Heads heads = heads_of(n, n.out_order, n.inp_order);
    const auto head_size = static_cast<size_t>(heads.from.head_size);
    const T* const weights[2] = {n.query_weight.as<T>(), n.key_weight.as<T>()};
    const float widths[2] = {static_cast<float>(n.query_width), static_cast<float>(n.key_width)};
    std::vector<float> x(head_size);
    for (int64_t row = 0; row < n.inp[0]; ++row) {
      T* out = n.out.as<T>() + row * heads.to.width;
      const T* inp = n.inp.as<T>() + row * heads.from.width;
      float* rstd = n.rstd.as<float>() + 2 * row;
      for (int kind = 0; kind < 2; ++kind)
        rstd[kind] = 1.0f / std::sqrt(n.squares.as<float>()[2 * row + kind] / widths[kind] + n.eps);
      heads.for_each([&](int to, int from, int kind, int head) {
        const T* weight = weights[kind] + static_cast<size_t>(head) * head_size;
        for (size_t i = 0; i < head_size; ++i) x[i] = to_float(inp[from + static_cast<int>(i)]) * rstd[kind];
        for (size_t i = 0; i < head_size; ++i) x[i] *= to_float(weight[i]);
        rotate(x, angles_of(n, row), 1);
        for (size_t i = 0; i < head_size; ++i) out[to + static_cast<int>(i)] = from_float<T>(x[i]);
      });
      heads.copy_values(out, inp);
    }
  });
}

void qk_norm_products(const QkNormProducts& n) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const Heads heads = heads_of(n, n.inp_order, n.dout_order);
    const auto head_size = static_cast<size_t>(heads.from.head_size);
    const T* const weights[2] = {n.query_weight.as<T>(), n.key_weight.as<T>()};
    std::vector<float> g(head_size);
    for (int64_t row = 0; row < n.inp[0]; ++row) {
      const T* inp = n.inp.as<T>() + row * heads.to.width;
      const T* dout = n.dout.as<T>() + row * heads.from.width;
      double sums[2] = {};
      heads.for_each([&](int to, int from, int kind, int head) {
        const T* weight = weights[kind] + static_cast<size_t>(head) * head_size;
        for (size_t i = 0; i < head_size; ++i) g[i] = to_float(dout[from + static_cast<int>(i)]);
        rotate(g, angles_of(n, row), -1);
        for (size_t i = 0; i < head_size; ++i)
          sums[kind] += double{g[i]} * to_float(weight[i]) * to_float(inp[to + static_cast<int>(i)]);
      });
      for (int kind = 0; kind < 2; ++kind) n.sums.as<float>()[2 * row + kind] = static_cast<float>(sums[kind]);
    }
  });
}

void qk_norm_full_backward(const QkNormFullBackward& n) {
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const Heads heads = heads_of(n, n.dinp_order, n.dout_order);
    const auto head_size = static_cast<size_t>(heads.from.head_size);
    const T* const weights[2] = {n.query_weight.as<T>(), n.key_weight.as<T>()};
    float* const dweights[2] = {n.dquery_weight.as<float>(), n.dkey_weight.as<float>()};
    const float widths[2] = {static_cast<float>(n.query_width), static_cast<float>(n.key_width)};
    std::vector<float> g(head_size);
    for (int64_t row = 0; row < n.inp[0]; ++row) {
      T* dinp = n.dinp.as<T>() + row * heads.to.width;
      const T* inp = n.inp.as<T>() + row * heads.to.width;
      const T* dout = n.dout.as<T>() + row * heads.from.width;
      const float *rstd = n.rstd.as<float>() + 2 * row, *products = n.products.as<float>() + 2 * row;
      heads.for_each([&](int to, int from, int kind, int head) {
        const size_t first = static_cast<size_t>(head) * head_size;
        const float slope = rstd[kind] * rstd[kind] * products[kind] / widths[kind];
        for (size_t i = 0; i < head_size; ++i) g[i] = to_float(dout[from + static_cast<int>(i)]);
        rotate(g, angles_of(n, row), -1);
        for (size_t i = 0; i < head_size; ++i) {
          const float x = to_float(inp[to + static_cast<int>(i)]);
          dweights[kind][first + i] += g[i] * x * rstd[kind];
          dinp[to + static_cast<int>(i)] =
              from_float<T>(rstd[kind] * (g[i] * to_float(weights[kind][first + i]) - x * slope));
        }
      });
      if (dinp != dout) heads.copy_values(dinp, dout);
    }
  });
}

}  // namespace tri::cpu
