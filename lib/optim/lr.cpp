#include "lib/optim/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "io/base/error.h"
#include "lib/config/batch_sizes.h"

namespace tri {
namespace {

// The lengths of a rule and the place of a step, in the unit of lr.by.
struct Place {
  int64_t at, length;     // t, n
  int64_t warmup, decay;  // w, e
};

// Share of the way from `from` to `to`, in [0, 1].
double progress(int64_t at, int64_t from, int64_t to) {
  if (to <= from) return at >= to ? 1.0 : 0.0;
  return std::clamp(static_cast<double>(at - from) / static_cast<double>(to - from), 0.0, 1.0);
}

double constant(const LrConfig&, const Place&) { return 0.0; }

double linear(const LrConfig&, const Place& p) { return progress(p.at, p.warmup, p.decay); }

double cosine(const LrConfig&, const Place& p) {
  return (1.0 - std::cos(std::numbers::pi * progress(p.at, p.warmup, p.decay))) / 2.0;
}

double wsd(const LrConfig& lr, const Place& p) {
  const auto length = static_cast<int64_t>(std::llround(lr.wsd_decay_fraction * static_cast<double>(p.decay)));
  return progress(p.at, std::max(p.warmup, p.decay - length), p.decay);
}

struct Row {
  LrRule rule;
  // After the warm-up: the share of the way from peak to min, in [0, 1].
  double (*decayed)(const LrConfig& lr, const Place& place);
};
constexpr Row kRules[] = {
    {LrRule::kConstant, constant}, {LrRule::kLinear, linear}, {LrRule::kCosine, cosine}, {LrRule::kWsd, wsd}};

}  // namespace

StepPosition step_position(const Config& config, int64_t steps, int64_t samples) {
  const int64_t length = config.model.seq_len;
  return {.step = steps, .tokens = samples * length, .step_tokens = batch_sizes(config).at(samples) * length};
}

double learning_rate(const LrConfig& lr, const StepPosition& at) {
  const bool by_tokens = lr.by == LrBy::kTokens;
  TRI_REQUIRE(!by_tokens || at.step_tokens > 0, "the learning rate of a step of {} tokens", at.step_tokens);
  const Place place = by_tokens ? Place{at.tokens, at.step_tokens, lr.warmup_tokens, lr.decay_tokens}
                                : Place{at.step, 1, lr.warmup_steps, lr.decay_steps};
  if (place.at < place.warmup)
    return lr.peak * static_cast<double>(place.at + place.length) / static_cast<double>(place.warmup + place.length);
  const auto* row = std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return r.rule == lr.rule; });
  TRI_REQUIRE(row != std::end(kRules), "the table of learning-rate rules has no rule {}", enum_name(lr.rule));
  return lr.peak + (lr.min - lr.peak) * row->decayed(lr, place);
}

double learning_rate(const LrConfig& lr, int64_t step) {
  TRI_REQUIRE(lr.by == LrBy::kSteps, "the learning rate of step {} follows the tokens", step);
  return learning_rate(lr, StepPosition{.step = step});
}

}  // namespace tri
