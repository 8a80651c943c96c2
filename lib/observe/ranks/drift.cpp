#include "lib/observe/ranks/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/base/median.h"
#include "lib/observe/ranks/stragglers.h"

namespace tri {
namespace {

constexpr double kSigma = 1.4826;     // standard deviation of a normal distribution over its median absolute deviation
constexpr double kOfMedian = 1.2533;  // the spread of a median of n, relative to that of a mean
constexpr size_t kMostBlocks = 2000;  // among which the start of a growth is searched
constexpr size_t kRunning = 5;        // blocks whose median is one point of that curve
constexpr double kExplains = 0.5;     // a part that explains at least this share of the growth counts as its cause
constexpr size_t kFewestSteps = 20;   // required both with and without a checkpoint

// Returns the spread of the median of `count` such values.
double median_spread(const std::vector<double>& values, double middle, size_t count) {
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return kOfMedian * kSigma * median(std::move(distances)) / std::sqrt(static_cast<double>(count));
}

double mean_of(const RankMesh& mesh, const RankWindow& window, RankQuantity quantity) {
  double sum = 0;
  for (const RankTimes& rank : window.ranks) sum += rank[quantity];
  return sum / mesh.world_size();
}

// Returns the skew with which the ranks of a role launch the reduction of gradients: the differences of their means
// plus the variation between steps.
double launch_skew(const RankMesh& mesh, const RankWindow& window) {
  double sum = 0;
  const auto roles = roles_of(mesh);
  for (const std::vector<int>& role : roles) {
    double least = 0, most = 0, spread = 0;
    for (const int rank : role) {
      const RankTimes& times = window.ranks[static_cast<size_t>(rank)];
      const double launch = times[RankQuantity::kLaunch];
      least = rank == role.front() ? launch : std::min(least, launch);
      most = rank == role.front() ? launch : std::max(most, launch);
      spread += times[RankQuantity::kLaunchSpread] / static_cast<double>(role.size());
    }
    sum += most - least + 2 * spread;
  }
  return sum / static_cast<double>(roles.size());
}

struct Part {
  std::string name;
  double seconds;
};
constexpr size_t kWaits = 2;  // the last parts are waits, which have their cause elsewhere; the launch skew precedes
                              // them

std::vector<Part> parts_of(const RankMesh& mesh, const RankWindow& window) {
  std::vector<Part> parts;
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    double sum = 0;
    for (const int world_rank : mesh.ranks_of_stage(stage)) {
      const RankTimes& rank = window.ranks[static_cast<size_t>(world_rank)];
      sum += rank[RankQuantity::kForward] + rank[RankQuantity::kBackward];
    }
    parts.push_back(
        {mesh.stages() == 1 ? "compute" : fmt::format("compute of stage {}", stage), sum / mesh.in_stage()});
  }
  const auto add = [&](RankQuantity quantity, const char* name) {
    parts.push_back({name, mean_of(mesh, window, quantity)});
  };
  add(RankQuantity::kOptimizer, "optimizer");
  add(RankQuantity::kData, "data");
  add(RankQuantity::kOther, "host code");
  add(RankQuantity::kStolen, "CPU time taken by other programs");
  add(RankQuantity::kTp, "tp transfers");
  add(RankQuantity::kCp, "cp transfers");
  add(RankQuantity::kEp, "ep transfers");
  add(RankQuantity::kPp, "pp transfers");
  parts.push_back({"launch skew of the reduce-scatter", launch_skew(mesh, window)});
  add(RankQuantity::kDp, "dp transfers");
  add(RankQuantity::kBubble, "bubble");
  return parts;
}

}  // namespace

void DriftSeries::set_baseline(const std::vector<double>& values) {
  baseline_ = median(values);
  baseline_spread_ = median_spread(values, baseline_, values.size());
  blocks_.clear();
}

// Returns the first step of the last range of blocks that stays above `level`.
int64_t DriftSeries::since(double level) const {
  size_t first = blocks_.size();
  while (first > 0) {
    const size_t begin = first >= kRunning ? first - kRunning : 0;
    std::vector<double> values;
    for (size_t b = begin; b < first; ++b) values.push_back(blocks_[b].median);
    if (median(std::move(values)) <= level) break;
    --first;
  }
  return blocks_[std::min(first, blocks_.size() - 1)].first_step;
}

std::optional<DriftSeries::Growth> DriftSeries::add(int64_t step, double value) {
  if (!std::isfinite(value)) return std::nullopt;
  ++count_;
  if (count_ <= kSkipped) return std::nullopt;
  if (count_ <= kSkipped + kBaseline) {
    first_.push_back(value);
    if (count_ == kSkipped + kBaseline) set_baseline(first_);
    return std::nullopt;
  }
  recent_.push_back(value);
  if (recent_.size() > kRecent) recent_.pop_front();
  const size_t in_block = (count_ - kSkipped - kBaseline - 1) % kBlock;
  if (in_block == 0) block_step_ = step;
  if (in_block + 1 < kBlock) return std::nullopt;
  blocks_.push_back({block_step_, median({recent_.end() - kBlock, recent_.end()})});
  if (blocks_.size() > kMostBlocks) blocks_.pop_front();
  if (recent_.size() < kRecent) return std::nullopt;

  const std::vector<double> last(recent_.begin(), recent_.end());
  const double now = median(last), spread = median_spread(last, now, kRecent);
  if (reference_ == Reference::kLowest && now < baseline_) {
    baseline_ = now;
    baseline_spread_ = spread;
  }
  const double growth = now - baseline_;
  if (growth <= least_ * baseline_ || growth <= kSigmas * std::hypot(spread, baseline_spread_)) return std::nullopt;
  const Growth found{.before = baseline_, .now = now, .since = since(baseline_ + growth / 3)};
  set_baseline(last);
  recent_.clear();
  return found;
}

std::vector<Drift> DriftWatch::add(const Step& step) {
  if (first_step_ == 0) first_step_ = step.step;
  recent_.push_back(step);
  if (recent_.size() > DriftSeries::kRecent) recent_.pop_front();
  std::vector<Drift> found;
  const auto look = [&](DriftSeries& series, const char* quantity, double value) {
    if (const auto growth = series.add(step.step, value))
      found.push_back({.quantity = quantity,
                       .before = growth->before,
                       .now = growth->now,
                       .growth = growth->now / growth->before - 1,
                       .since = growth->since,
                       .step = step.step,
                       .mfu = std::nullopt,
                       .part = {}});
  };
  look(time_, "step time", step.seconds);
  if (!found.empty()) {
    if (step.mfu) found.back().mfu = *step.mfu * step.seconds / found.back().now;
    name_part(found.back());
  }
  look(loss_, "loss", step.loss);
  look(norm_, "gradient norm", step.grad_norm);
  return found;
}

void DriftWatch::add(const RankMesh& mesh, const RankWindow& window) {
  std::vector<double> seconds;
  part_names_.clear();
  for (const Part& part : parts_of(mesh, window)) {
    part_names_.push_back(part.name);
    seconds.push_back(part.seconds);
  }
  const auto skipped = static_cast<int64_t>(DriftSeries::kSkipped),
             baseline = static_cast<int64_t>(DriftSeries::kBaseline);
  // The first whole windows after the skipped steps, as long as the baseline.
  if (window.first_step >= first_step_ + skipped && baseline_windows_ * window.steps() < baseline) {
    baseline_parts_.resize(seconds.size());
    for (size_t i = 0; i < seconds.size(); ++i)
      baseline_parts_[i] += (seconds[i] - baseline_parts_[i]) / static_cast<double>(baseline_windows_ + 1);
    ++baseline_windows_;
  }
  windows_.push_back({window.first_step, window.last_step, std::move(seconds)});
  while (windows_.front().last_step < window.last_step - 2 * static_cast<int64_t>(DriftSeries::kRecent) &&
         windows_.size() > 1)
    windows_.pop_front();
}

// Returns the median time of the last steps during which no checkpoint was written, or nothing if there are too few
// steps with or without one.
std::optional<double> DriftWatch::growth_without_checkpoints() const {
  std::vector<double> without;
  for (const Step& step : recent_)
    if (!step.checkpoint) without.push_back(step.seconds);
  if (without.size() < kFewestSteps || recent_.size() - without.size() < kFewestSteps) return std::nullopt;
  return median(std::move(without));
}

void DriftWatch::name_part(Drift& drift) {
  const double growth = drift.now - drift.before;
  if (const auto without = growth_without_checkpoints(); without && *without - drift.before < growth / 3) {
    drift.part = "checkpoint";
    drift.part_share = 1 - std::max(0.0, *without - drift.before) / growth;
    return;
  }
  std::vector<double> now;
  int count = 0;
  for (const Parts& window : windows_) {
    if (window.last_step <= drift.step - static_cast<int64_t>(DriftSeries::kRecent)) continue;
    now.resize(window.seconds.size());
    for (size_t i = 0; i < now.size(); ++i) now[i] += (window.seconds[i] - now[i]) / (count + 1);
    ++count;
  }
  if (count == 0 || baseline_windows_ == 0) return;
  // Choose a part that explains enough of the growth; else the launch skew; else the wait that grew the most.
  const size_t skew = now.size() - kWaits - 1;
  const auto share = [&](size_t i) { return (now[i] - baseline_parts_[i]) / growth; };
  const auto most = [&](size_t begin, size_t end) {
    size_t best = begin;
    for (size_t i = begin; i < end; ++i)
      if (share(i) > share(best)) best = i;
    return best;
  };
  size_t part = most(0, skew);
  if (share(part) < kExplains) part = share(skew) >= kExplains ? skew : most(0, now.size());
  drift.part = part_names_[part];
  drift.part_share = share(part);
  baseline_parts_ = now;
}

std::string to_string(const Drift& drift) {
  const double percent = 100 * drift.growth;
  if (drift.quantity != "step time")
    return fmt::format("the {} has grown by {:.1f} %, from its lowest value {:.4g} to {:.4g}, since about step {}",
                       drift.quantity, percent, drift.before, drift.now, drift.since);
  std::string text =
      fmt::format("steps take {:.1f} % longer than before, {:.4g} ms instead of {:.4g} ms, since about step {}",
                  percent, 1e3 * drift.now, 1e3 * drift.before, drift.since);
  if (drift.mfu)
    text +=
        fmt::format("; MFU is {:.1f} % instead of {:.1f} %", 100 * *drift.mfu, 100 * *drift.mfu * (1 + drift.growth));
  if (!drift.part.empty())
    text += fmt::format("; the largest part is {} ({:.0f} % of the growth)", drift.part,
                        100 * std::min(1.0, drift.part_share));
  return text;
}

}  // namespace tri
