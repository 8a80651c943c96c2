#include "lib/observe/ranks/window_clock.h"

#include <algorithm>
#include <cmath>

#include "io/base/error.h"
#include "io/base/median.h"

namespace tri {
namespace {

double lower_quartile(std::vector<double> values) {
  const auto quarter = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), quarter, values.end());
  return *quarter;
}

}  // namespace

void WindowClock::add(const RankStep& step) {
  const auto add = [&](RankQuantity quantity, double seconds) { sums_[static_cast<size_t>(quantity)] += seconds; };
  const auto work = [&](TimeCategory category) { return step.timeline.work[static_cast<size_t>(category)]; };
  const double forward = work(TimeCategory::kForward), backward = work(TimeCategory::kBackward),
               optimizer = work(TimeCategory::kOptimizer), rest = work(TimeCategory::kCompute);
  const double at_work = forward + backward + optimizer + rest;
  add(RankQuantity::kStep, step.wall);
  add(RankQuantity::kForward, forward);
  add(RankQuantity::kBackward, backward);
  add(RankQuantity::kOptimizer, optimizer);
  for (const RankQuantity wait : kExposedWaits) add(wait, step.times.of(enum_name(wait)));
  add(RankQuantity::kStolen, step.times.compute + step.times.optimizer - at_work);
  add(RankQuantity::kOther, step.times.other + rest);
  compute_.push_back(forward + backward);
  send_.push_back(step.send);
  launch_.push_back(step.timeline.ready > 0 ? step.before + step.timeline.ready : 0);
}

RankTimes WindowClock::take() {
  TRI_REQUIRE(steps() > 0, "a window must have at least one step");
  const auto count = static_cast<double>(steps());
  RankTimes mean;
  for (size_t q = 0; q < kNumRankQuantities; ++q) mean.seconds[q] = static_cast<float>(sums_[q] / count);
  double launch = 0, squares = 0;
  for (const double seconds : launch_) launch += seconds / count;
  for (const double seconds : launch_) squares += (seconds - launch) * (seconds - launch) / count;
  mean[RankQuantity::kCompute] = static_cast<float>(lower_quartile(compute_));
  mean[RankQuantity::kSend] = static_cast<float>(median(send_));
  mean[RankQuantity::kLaunch] = static_cast<float>(launch);
  mean[RankQuantity::kLaunchSpread] = static_cast<float>(std::sqrt(squares));
  *this = {};
  return mean;
}

}  // namespace tri
