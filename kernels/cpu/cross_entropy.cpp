// Cross-entropy over a split vocabulary, the reference.  Formulas and shapes: kernels/cross_entropy.h.
// A row's exponentials are summed in chunks: in fp32 lanes inside a chunk, in double across chunks. So the sum does not
// lose digits with the width of the vocabulary, and where tp splits it matters only to fp32 rounding.
#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"
#include "kernels/no_target.h"

namespace tri::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 16;   // independent partial results, so that the loop vectorises
constexpr int kChunk = 512;  // columns summed in fp32

// This rank's part of a row: columns [0, real) exist, the others are padding.
struct Columns {
  int64_t width, real;

  Columns(const Tensor& logits, int first_token, int vocab)
      : width(logits[1]), real(std::clamp<int64_t>(int64_t{vocab} - first_token, 0, logits[1])) {}
};

// Returns the target's column on this rank, or -1 if another rank has it or the row has no target.
int64_t local_column(int32_t target, int first_token, int vocab, const Columns& columns) {
  if (target == kNoTarget) return -1;
  TRI_REQUIRE(target >= 0 && target < vocab, "target {} of a vocabulary of {}", target, vocab);
  const int64_t column = int64_t{target} - first_token;
  return column >= 0 && column < columns.real ? column : -1;
}

// Returns -inf if there are no columns. A NaN may be lost here; it reappears in the sum.
template <class T>
float row_max(const T* __restrict row, int64_t count) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kMinusInfinity);
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = to_float(row[c + lane]);
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  for (; c < count; ++c) lanes[0] = std::max(lanes[0], to_float(row[c]));
  return *std::max_element(lanes, lanes + kLanes);
}

// Returns the sum of exp(row - max), or 0 if max is -inf (no columns, or all of them are -inf).
template <class T>
float row_sum_exp(const T* __restrict row, int64_t count, float max) {
  if (max == kMinusInfinity) max = 0;  // -inf - -inf would be NaN
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, count);
    float lanes[kLanes] = {};
    int64_t c = begin;
    for (; c + kLanes <= end; c += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += exp_f32(to_float(row[c + lane]) - max);
    }
    for (; c < end; ++c) lanes[0] += exp_f32(to_float(row[c]) - max);
    for (const float lane : lanes) sum += lane;
  }
  return static_cast<float>(sum);
}

// Calls use(row): the row itself or, with a softcap, a copy of its first `count` columns in fp32 that are capped.
template <class T, class Use>
void with_capped(const T* row, int64_t count, float softcap, const Use& use) {
  if (softcap == 0) return use(row);
  thread_local std::vector<float> capped;
  capped.resize(static_cast<size_t>(count));
  for (int64_t c = 0; c < count; ++c) capped[static_cast<size_t>(c)] = softcap * std::tanh(to_float(row[c]) / softcap);
  use(static_cast<const float*>(capped.data()));
}

template <class T>
void stats(const CrossEntropyStats& a) {
  const Columns columns(a.logits, a.first_token, a.vocab);
  for (int64_t r = 0; r < a.logits[0]; ++r) {
    const int64_t target = local_column(a.targets.as<int32_t>()[r], a.first_token, a.vocab, columns);
    float* out = a.stats.as<float>() + r * 3;
    with_capped(a.logits.as<T>() + r * columns.width, columns.real, a.softcap, [&](const auto* row) {
      out[0] = row_max(row, columns.real);
      out[1] = row_sum_exp(row, columns.real, out[0]);
      out[2] = target >= 0 ? to_float(row[target]) : kMinusInfinity;
    });
  }
}

// The full row's statistics, combined from those of all tp ranks.
struct RowStats {
  float max;
  double sum;
  float target;
};

RowStats combine(const Tensor& stats, int64_t r) {
  const float* all = stats.as<float>();
  const int64_t num_rows = stats[1];
  RowStats row{kMinusInfinity, 0, kMinusInfinity};
  for (int64_t k = 0; k < stats[0]; ++k) {
    const float* part = all + (k * num_rows + r) * 3;
    row.max = std::max(row.max, part[0]);
    row.target = std::max(row.target, part[2]);
  }
  for (int64_t k = 0; k < stats[0]; ++k) {
    const float* part = all + (k * num_rows + r) * 3;
    // A rank that holds only padding has max -inf and sum 0, so it adds 0 · exp(-inf) = 0.
    row.sum += part[1] * std::exp(static_cast<double>(part[0]) - row.max);
  }
  return row;
}

// logits <- (softmax · (1 + 2 z_loss lse) - onehot) · grad_scale, zero in padding.
template <class T>
void row_gradient(T* __restrict row, const Columns& columns, int64_t target, const RowStats& stats, float grad_scale,
                  float z_loss) {
  const double factor = z_loss == 0 ? 1.0 : 1.0 + 2.0 * z_loss * (stats.max + std::log(stats.sum));
  const float max = stats.max, scale = static_cast<float>(grad_scale * factor / stats.sum);
  const float target_logit = target >= 0 ? to_float(row[target]) : 0.0f;
  for (int64_t c = 0; c < columns.real; ++c) row[c] = from_float<T>(exp_f32(to_float(row[c]) - max) * scale);
  std::fill(row + columns.real, row + columns.width, from_float<T>(0.0f));
  if (target >= 0) row[target] = from_float<T>(exp_f32(target_logit - max) * scale - grad_scale);
}

// The same with a softcap: `capped` are the row's logits after it.
template <class T>
void capped_gradient(T* __restrict row, const float* __restrict capped, const Columns& columns, int64_t target,
                     const RowStats& stats, float grad_scale, float z_loss, float softcap) {
  const double factor = z_loss == 0 ? 1.0 : 1.0 + 2.0 * z_loss * (stats.max + std::log(stats.sum));
  const float max = stats.max, scale = static_cast<float>(grad_scale * factor / stats.sum);
  for (int64_t c = 0; c < columns.real; ++c) {
    const float ratio = capped[c] / softcap, onehot = c == target ? grad_scale : 0.0f;
    row[c] = from_float<T>((exp_f32(capped[c] - max) * scale - onehot) * (1.0f - ratio * ratio));
  }
  std::fill(row + columns.real, row + columns.width, from_float<T>(0.0f));
}

template <class T>
RowStats full_row(const T* row, const Columns& columns, int32_t target) {
  const float max = row_max(row, columns.real);
  return {max, row_sum_exp(row, columns.real, max), to_float(row[target])};
}

template <class T>
void loss(const CrossEntropyLoss& a) {
  const Columns columns(a.logits, a.first_token, a.vocab);
  double total = 0;
  for (int64_t r = 0; r < a.logits[0]; ++r) {
    T* logits = a.logits.as<T>() + r * columns.width;
    if (a.targets.as<int32_t>()[r] == kNoTarget) {
      if (a.gradient == LogitGradient::kInPlace) std::fill_n(logits, columns.width, from_float<T>(0.0f));
      continue;
    }
    const int64_t target = local_column(a.targets.as<int32_t>()[r], a.first_token, a.vocab, columns);
    with_capped(logits, columns.real, a.softcap, [&]<class V>(V* values) {
      const RowStats row =
          a.stats.empty() ? full_row(values, columns, static_cast<int32_t>(target)) : combine(a.stats, r);
      total += row.max + std::log(row.sum) - row.target;
      if (a.gradient == LogitGradient::kNone) return;
      if constexpr (std::is_same_v<V, const float>)
        if (a.softcap > 0)
          return capped_gradient(logits, values, columns, target, row, a.grad_scale, a.z_loss, a.softcap);
      row_gradient(logits, columns, target, row, a.grad_scale, a.z_loss);
    });
  }
  a.loss.as<float>()[0] += static_cast<float>(total);
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& a) {
  dispatch(a.logits.dtype, [&](auto type) { stats<decltype(type)>(a); });
}

void cross_entropy_loss(const CrossEntropyLoss& a) {
  dispatch(a.logits.dtype, [&](auto type) { loss<decltype(type)>(a); });
}

}  // namespace tri::cpu
