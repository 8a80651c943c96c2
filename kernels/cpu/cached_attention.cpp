// Attention against a cache, the reference.  Formulas and shapes: kernels/cached_attention.h.
// Bound: memory, the band's keys and values once per row and query head.
#include "kernels/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Independent partial sums, so that the loop vectorises.
template <class T>
float dot(const T* __restrict a, const T* __restrict b, int64_t count) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += to_float(a[c + lane]) * to_float(b[c + lane]);
  float sum = 0;
  for (; c < count; ++c) sum += to_float(a[c]) * to_float(b[c]);
  for (const float lane : lanes) sum += lane;
  return sum;
}

template <class T>
void attend(const CachedAttention& a) {
  const int64_t head_size = a.keys[2] / a.num_kv_heads, slots = a.keys[1], slot_width = a.keys[2], rows = a.qkv[0];
  const QkvRow row = qkv_row(a.order, a.num_kv_heads, a.group, static_cast<int>(head_size));
  const int32_t *sequences = a.sequences.as<int32_t>(), *positions = a.positions.as<int32_t>();
  T *keys = a.keys.as<T>(), *values = a.values.as<T>();
  const auto slot_at = [&](int64_t r, int64_t position) {
    return (sequences[r] * slots + position % slots) * slot_width;
  };
  for (int64_t r = 0; r < rows; ++r) {
    if (sequences[r] < 0) continue;
    TRI_REQUIRE(sequences[r] < a.keys[0] && positions[r] >= 0, "row {}: sequence {} of {}, position {}", r,
                sequences[r], a.keys[0], positions[r]);
    const T* qkv = a.qkv.as<T>() + r * row.width;
    for (int kv = 0; kv < a.num_kv_heads; ++kv) {
      const int64_t to = slot_at(r, positions[r]) + kv * head_size;
      std::copy_n(qkv + row.key(kv), head_size, keys + to);
      std::copy_n(qkv + row.value(kv), head_size, values + to);
    }
  }
  std::vector<float> weights, sum(static_cast<size_t>(head_size));
  for (int64_t r = 0; r < rows; ++r) {
    T* out = a.out.as<T>() + r * a.out[1];
    if (sequences[r] < 0) {
      std::fill_n(out, a.out[1], T{});
      continue;
    }
    const int64_t last = positions[r], first = a.window == 0 ? 0 : std::max<int64_t>(0, last - a.window + 1);
    weights.resize(static_cast<size_t>(last - first + 1));
    for (int head = 0; head < a.num_kv_heads * a.group; ++head, out += head_size) {
      const int kv = head / a.group;
      const T* query = a.qkv.as<T>() + r * row.width + row.query(kv, head % a.group);
      for (int64_t s = first; s <= last; ++s)
        weights[static_cast<size_t>(s - first)] =
            a.scale * dot(query, keys + slot_at(r, s) + kv * head_size, head_size);
      if (a.softcap > 0)
        for (float& score : weights) score = a.softcap * std::tanh(score / a.softcap);
      const float largest = *std::max_element(weights.begin(), weights.end());
      float total = 0;
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t s = first; s <= last; ++s) {
        const float weight = std::exp(weights[static_cast<size_t>(s - first)] - largest);
        const T* value = values + slot_at(r, s) + kv * head_size;
        total += weight;
        for (int64_t c = 0; c < head_size; ++c) sum[static_cast<size_t>(c)] += weight * to_float(value[c]);
      }
      for (int64_t c = 0; c < head_size; ++c) out[c] = from_float<T>(sum[static_cast<size_t>(c)] / total);
    }
  }
}

}  // namespace

void cached_attention(const CachedAttention& a) {
  dispatch(a.qkv.dtype, [&](auto type) { attend<decltype(type)>(a); });
}

}  // namespace tri::cpu
