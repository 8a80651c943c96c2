#include "lib/observe/metrics/step_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "io/base/error.h"
#include "io/ranks/rank_times.h"

namespace tri {

namespace {

struct StepPart {
  const char* name;
  double StepTimes::*seconds;
};
constexpr StepPart kStepParts[] = {{"compute", &StepTimes::compute}, {"tp", &StepTimes::tp},
                                   {"cp", &StepTimes::cp},           {"ep", &StepTimes::ep},
                                   {"pp", &StepTimes::pp},           {"dp", &StepTimes::dp},
                                   {"bubble", &StepTimes::bubble},   {"optimizer", &StepTimes::optimizer},
                                   {"data", &StepTimes::data},       {"other", &StepTimes::other}};
static_assert(std::size(kStepParts) == StepTimes::kKinds);

}  // namespace

const std::array<const char*, StepTimes::kKinds>& StepTimes::names() {
  static constexpr auto kNames = [] {
    std::array<const char*, kKinds> names{};
    for (size_t i = 0; i < names.size(); ++i) names[i] = kStepParts[i].name;
    return names;
  }();
  return kNames;
}

std::array<double, StepTimes::kKinds> StepTimes::values() const {
  std::array<double, kKinds> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = this->*kStepParts[i].seconds;
  return values;
}

double StepTimes::of(std::string_view name) const {
  const auto part = std::ranges::find(kStepParts, name, &StepPart::name);
  TRI_REQUIRE(part != std::end(kStepParts), "a step has no part {}", name);
  return this->*part->seconds;
}

StepTimes& StepTimes::operator+=(const StepTimes& more) {
  for (const StepPart& part : kStepParts) this->*part.seconds += more.*part.seconds;
  return *this;
}

StepTimes step_times(const Timeline::Times& times, double transfer, double wall, double data) {
  StepTimes s{.compute = times.of(TimeCategory::kCompute) + times.of(TimeCategory::kForward) +
                         times.of(TimeCategory::kBackward),
              .tp = times.of(TimeCategory::kTp),
              .cp = times.of(TimeCategory::kCp),
              .ep = times.of(TimeCategory::kEp),
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
