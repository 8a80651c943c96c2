#include "lib/optim/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "io/base/error.h"

namespace tri {
namespace {

// Share of the way from `from` to `to`, in [0, 1].
double progress(int64_t step, int64_t from, int64_t to) {
  if (to <= from) return step >= to ? 1.0 : 0.0;
  return std::clamp(static_cast<double>(step - from) / static_cast<double>(to - from), 0.0, 1.0);
}

double constant(const LrConfig&, int64_t) { return 0.0; }

double linear(const LrConfig& lr, int64_t step) { return progress(step, lr.warmup_steps, lr.decay_steps); }

double cosine(const LrConfig& lr, int64_t step) {
  return (1.0 - std::cos(std::numbers::pi * progress(step, lr.warmup_steps, lr.decay_steps))) / 2.0;
}

double wsd(const LrConfig& lr, int64_t step) {
  const auto length = static_cast<int64_t>(std::llround(lr.wsd_decay_fraction * static_cast<double>(lr.decay_steps)));
  return progress(step, std::max(lr.warmup_steps, lr.decay_steps - length), lr.decay_steps);
}

struct Row {
  LrRule rule;
  // After the warm-up: the share of the way from peak to min, in [0, 1].
  double (*decayed)(const LrConfig& lr, int64_t step);
};
constexpr Row kRules[] = {
    {LrRule::kConstant, constant}, {LrRule::kLinear, linear}, {LrRule::kCosine, cosine}, {LrRule::kWsd, wsd}};

}  // namespace

double learning_rate(const LrConfig& lr, int64_t step) {
  if (step < lr.warmup_steps) return lr.peak * static_cast<double>(step + 1) / static_cast<double>(lr.warmup_steps + 1);
  const auto* row = std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return r.rule == lr.rule; });
  TRI_REQUIRE(row != std::end(kRules), "the table of learning-rate rules has no rule {}", enum_name(lr.rule));
  return lr.peak + (lr.min - lr.peak) * row->decayed(lr, step);
}

}  // namespace tri
