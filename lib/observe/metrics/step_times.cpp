#include "lib/observe/metrics/step_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "io/ranks/rank_times.h"

namespace tri {

const std::array<const char*, StepTimes::kKinds>& StepTimes::names() {
  static constexpr std::array<const char*, kKinds> kNames = {"compute", "tp",        "pp",   "dp",
                                                             "bubble",  "optimizer", "data", "other"};
  return kNames;
}

StepTimes& StepTimes::operator+=(const StepTimes& more) {
  compute += more.compute, tp += more.tp, pp += more.pp, dp += more.dp;
  bubble += more.bubble, optimizer += more.optimizer, data += more.data, other += more.other;
  return *this;
}

StepTimes step_times(const Timeline::Times& times, double transfer, double wall, double data) {
  StepTimes s{.compute = times.of(TimeCategory::kCompute) + times.of(TimeCategory::kForward) +
                         times.of(TimeCategory::kBackward),
              .tp = times.of(TimeCategory::kTp),
              .dp = times.of(TimeCategory::kDp),
              .optimizer = times.of(TimeCategory::kOptimizer),
              .data = data,
              .other = wall - data - times.total()};
  for (const double wait : times.pp_waits) {
    const double moving = std::min(wait, transfer);
    s.pp += moving;
    s.bubble += wait - moving;
  }
  return s;
}

std::string exposed_text(const StepTimes& times) {
  constexpr double kLeast = 0.05;  // of the step
  std::string text;
  const auto values = times.values();
  const double step = std::accumulate(values.begin(), values.end(), 0.0);
  for (size_t i = 1; i < values.size(); ++i) {
    const std::string_view name = StepTimes::names()[i];
    const bool exposed = std::ranges::any_of(kExposedWaits, [&](RankQuantity wait) { return enum_name(wait) == name; });
    if (exposed && values[i] >= kLeast * step && step > 0) text += fmt::format("{} {:.1f} ", name, 1e3 * values[i]);
  }
  return text.empty() ? text : "waits " + text + "ms";
}

}  // namespace tri
