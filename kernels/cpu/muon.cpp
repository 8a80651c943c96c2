// The ops of Muon, the reference.  Formulas and shapes: kernels/muon.h.
// Sums in double, in a fixed order.  Bound: memory.
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/core/dims.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"
#include "kernels/moment_rounding.h"

namespace tri::cpu {
namespace {

// Calls f(element of the slice, element of the part, count) for each contiguous piece of a part, in order.
template <class F>
void for_each_piece(const MatrixRuns& runs, int64_t count, F f) {
  for (int64_t p = 0; p < count;) {
    const int64_t left = runs.run - (runs.first + p) % runs.run, length = std::min(left, count - p);
    f(runs.at(p), p, length);
    p += length;
  }
}

}  // namespace

void momentum_update(const MomentumUpdate& a) {
  const float grad_scale = a.grad_scale.as<float>()[0], mu = a.mu;
  if (std::isnan(grad_scale)) return;
  const int32_t* owners = a.block_tensor.as<int32_t>();
  dispatch(a.momentum.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t block = 0; block < a.block_tensor.numel(); ++block) {
      if (owners[block] < 0) continue;
      float* __restrict grad = a.grad.as<float>() + block * kBlock;
      T* __restrict momentum = a.momentum.as<T>() + block * kBlock;
      float m[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        const float g = grad[i] * grad_scale;
        m[i] = mu * to_float(momentum[i]) + g;
        grad[i] = g + mu * m[i];
      }
      if constexpr (std::is_same_v<T, float>) {
        std::copy_n(m, kBlock, momentum);
      } else {
        const auto& draws =
            reinterpret_cast<const TensorDraws*>(a.rounding.draws.template as<int32_t>())[owners[block]];
        const auto first = static_cast<uint32_t>((a.rounding.first_block + block - draws.first_block) * (kBlock / 4));
        for (uint32_t quad = 0; quad < kBlock / 4; ++quad) {
          const MomentDraw draw = draw_of(draws.key(), a.rounding.step_key, draws.global_quad(first + quad));
          for (int i = 0; i < 4; ++i) {
            const uint32_t at = 4 * quad + static_cast<uint32_t>(i);
            momentum[at].bits = round_stochastically(m[at], draw.exp_avg(i));
          }
        }
      }
    }
  });
}

void pack_matrix(const PackMatrix& a) {
  const float* inp = a.inp.as<float>();
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = a.out.as<T>();
    for_each_piece(a.runs, a.out.numel(), [&](int64_t at, int64_t p, int64_t count) {
      for (int64_t i = 0; i < count; ++i) out[p + i] = from_float<T>(inp[at + i]);
    });
  });
}

void unpack_matrix(const UnpackMatrix& a) {
  float* out = a.out.as<float>();
  const float* master = a.master.as<float>();
  const float scale = a.scale, decay = a.decay;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const T* inp = a.inp.as<T>();
    for_each_piece(a.runs, a.inp.numel(), [&](int64_t at, int64_t p, int64_t count) {
      for (int64_t i = 0; i < count; ++i) out[at + i] = scale * to_float(inp[p + i]) + decay * master[at + i];
    });
  });
}

void matrix_sumsq(const MatrixSumsq& a) {
  double sum = 0;
  dispatch(a.inp.dtype, [&](auto type) {
    const auto* inp = a.inp.as<decltype(type)>();
    for (int64_t i = 0; i < a.inp.numel(); ++i) sum += static_cast<double>(to_float(inp[i])) * to_float(inp[i]);
  });
  a.sumsq.as<float>()[0] = static_cast<float>(sum);
}

void scale_matrix(const ScaleMatrix& a) {
  const float factor = a.sumsq.empty() ? 1.0f : 1.0f / (std::sqrt(a.sumsq.as<float>()[0]) + a.eps);
  const int64_t rows = a.out[0], columns = a.out[1], shards = std::max(a.out_shards, a.inp_shards);
  const int64_t width = columns / shards;
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = a.out.as<T>();
    const T* inp = a.inp.as<T>();
    for (int64_t s = 0; s < shards; ++s)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t whole = r * columns + s * width, sharded = (s * rows + r) * width;
        const int64_t to = a.out_shards > 1 ? sharded : whole, from = a.inp_shards > 1 ? sharded : whole;
        for (int64_t c = 0; c < width; ++c) out[to + c] = from_float<T>(factor * to_float(inp[from + c]));
      }
  });
}

}  // namespace tri::cpu
