#include "lib/optim/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tri {
namespace {

// Share of the way from `from` to `to`, in [0, 1].
double progress(int64_t step, int64_t from, int64_t to) {
  if (to <= from) return step >= to ? 1.0 : 0.0;
  return std::clamp(static_cast<double>(step - from) / static_cast<double>(to - from), 0.0, 1.0);
}

double decayed(const LrConfig& lr, double share) { return lr.peak + (lr.min - lr.peak) * share; }

}  // namespace

double learning_rate(const LrConfig& lr, int64_t step) {
  if (step < lr.warmup_steps) return lr.peak * static_cast<double>(step + 1) / static_cast<double>(lr.warmup_steps + 1);
  switch (lr.rule) {
    case LrRule::kConstant:
      return lr.peak;
    case LrRule::kLinear:
      return decayed(lr, progress(step, lr.warmup_steps, lr.decay_steps));
    case LrRule::kCosine:
      return decayed(lr, (1.0 - std::cos(std::numbers::pi * progress(step, lr.warmup_steps, lr.decay_steps))) / 2.0);
    case LrRule::kWsd: {
      const auto length =
          static_cast<int64_t>(std::llround(lr.wsd_decay_fraction * static_cast<double>(lr.decay_steps)));
      return decayed(lr, progress(step, std::max(lr.warmup_steps, lr.decay_steps - length), lr.decay_steps));
    }
  }
  return lr.peak;
}

}  // namespace tri
