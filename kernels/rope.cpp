#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/checks.h"

namespace tri {
namespace {

double llama3_frequency(const RopeAngles& a, double frequency) {
  const double rotations = a.original_seq_len * frequency / (2 * M_PI);
  if (rotations >= a.high_freq_factor) return frequency;
  if (rotations <= a.low_freq_factor) return frequency / a.factor;
  const double kept = (rotations - a.low_freq_factor) / (a.high_freq_factor - a.low_freq_factor);
  return (1 - kept) * frequency / a.factor + kept * frequency;
}

void scale_by_yarn(const RopeAngles& a, int head_size, std::vector<double>& frequencies) {
  // The pair, not a whole number, that rotates `rotations` times within the original length.
  const auto pair_of = [&](double rotations) {
    return head_size * std::log(a.original_seq_len / (rotations * 2 * M_PI)) / (2 * std::log(a.theta));
  };
  const double first = std::max(std::floor(pair_of(a.beta_fast)), 0.0);
  double last = std::min(std::ceil(pair_of(a.beta_slow)), head_size - 1.0);
  if (first == last) last += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    frequencies[i] = (1 - divided) * frequencies[i] + divided * frequencies[i] / a.factor;
  }
}

}  // namespace

void check(const Rope& r) {
  require_matrix("rope", "inp", r.inp);
  require_tensor("rope", "out", r.out, r.inp.dtype, {r.inp[0], r.inp[1]});
  TRI_REQUIRE(r.table.dims == 3 && r.table[0] > 0 && r.table[1] > 0, "rope: table {} is not (T, HS/2, 2)",
              r.table.shape_text());
  require_tensor("rope", "table", r.table, Dtype::kF32, {r.table[0], r.table[1], 2});
  TRI_REQUIRE(r.num_kv_heads > 0 && r.group > 0 && r.inp[0] % r.table[0] == 0 &&
                  r.inp[1] == int64_t{r.num_kv_heads} * (r.group + 2) * 2 * r.table[1],
              "rope: inp {} of {} x ({} + 2) heads with table {}", r.inp.shape_text(), r.num_kv_heads, r.group,
              r.table.shape_text());
  TRI_REQUIRE(r.out.data != r.inp.data || r.out_order == r.inp_order, "rope: in place the order of heads stays");
}

std::vector<double> rope_frequencies(const RopeAngles& angles, int head_size) {
  const int rotated = rotated_elements(angles.fraction, head_size);
  TRI_REQUIRE(head_size > 0 && head_size % 2 == 0, "rope: head size {} is odd", head_size);
  TRI_REQUIRE(rotated > 0 && rotated <= head_size && rotated % 2 == 0, "rope: rotates {} of {} elements", rotated,
              head_size);
  std::vector<double> frequencies;
  for (int i = 0; i < rotated / 2; ++i) frequencies.push_back(std::pow(angles.theta, -2.0 * i / rotated));
  switch (angles.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) frequency /= angles.factor;
      break;
    case RopeScaling::kLlama3:
      for (double& frequency : frequencies) frequency = llama3_frequency(angles, frequency);
      break;
    case RopeScaling::kYarn:
      scale_by_yarn(angles, rotated, frequencies);
      break;
  }
  frequencies.resize(static_cast<size_t>(head_size) / 2, 0.0);
  return frequencies;
}

double rope_attention_factor(const RopeAngles& angles) {
  if (angles.scaling != RopeScaling::kYarn) return 1.0;
  if (angles.attention_factor > 0) return angles.attention_factor;
  return angles.factor <= 1 ? 1.0 : 0.1 * std::log(angles.factor) + 1.0;
}

void fill_rope_table(float* table, int seq_len, int head_size, const RopeAngles& angles) {
  const std::vector<double> frequencies = rope_frequencies(angles, head_size);
  const int half = head_size / 2, rotated = rotated_elements(angles.fraction, head_size) / 2;
  for (int i = 0; i < half; ++i) {
    const double scale = i < rotated ? rope_attention_factor(angles) : 1.0;
    for (int t = 0; t < seq_len; ++t) {
      float* pair = table + (int64_t{t} * half + i) * 2;
      const double angle = t * frequencies[static_cast<size_t>(i)];
      pair[0] = static_cast<float>(scale * std::cos(angle));
      pair[1] = static_cast<float>(scale * std::sin(angle));
    }
  }
}

}  // namespace tri
