#include "lib/supervise/stragglers.h"

#include <algorithm>

#include "io/base/error.h"
#include "io/base/median.h"

namespace tri {

std::string Straggler::text() const {
  return fmt::format("rank {} on {} computes {:.0f} % longer than the median of its stage, {} windows of steps on end",
                     world_rank, node, 100 * slower, windows);
}

void Stragglers::take(const std::string& node, std::span<const RankSight> ranks) {
  for (const RankSight& sight : ranks) {
    Rank& rank = ranks_[sight.world_rank];
    rank.node = node;
    rank.stage = sight.stage;
    // A count that falls is another process's: its window begins anew.
    if (sight.timed_steps < rank.steps) rank = Rank{.node = node, .stage = sight.stage};
    rank.steps = sight.timed_steps;
    rank.seconds = sight.compute_seconds;
  }
}

std::vector<Straggler> Stragglers::judge(size_t num_ranks, const Thresholds& thresholds) {
  std::vector<Straggler> stragglers;
  const auto window = static_cast<int64_t>(thresholds.straggler_steps);
  const bool ended = !ranks_.empty() && ranks_.size() >= num_ranks &&
                     std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
                       return entry.second.steps - entry.second.window_steps >= std::max<int64_t>(window, 1);
                     });
  if (!ended || thresholds.straggler_windows < 1) return stragglers;

  std::map<int, std::vector<double>> stages;
  for (const auto& [number, rank] : ranks_) stages[rank.stage].push_back(rank.mean());
  std::map<int, double> medians;
  constexpr size_t kFewest = 3;
  for (auto& [stage, means] : stages)
    if (means.size() >= kFewest) medians[stage] = median(means);

  const double much = thresholds.straggler_percent / 100;
  const auto windows = static_cast<int>(thresholds.straggler_windows);
  for (auto& [number, rank] : ranks_) {
    const auto of_stage = medians.find(rank.stage);
    const double slower = of_stage == medians.end() || of_stage->second <= 0 ? 0 : rank.mean() / of_stage->second - 1;
    rank.slow = slower >= much / 2 ? rank.slow + 1 : 0;
    rank.very_slow = slower >= much ? rank.very_slow + 1 : 0;
    rank.window_steps = rank.steps;
    rank.window_seconds = rank.seconds;
    const bool lasting = rank.very_slow == windows;
    if (lasting || rank.slow == std::max(1, windows / 2))
      stragglers.push_back({.node = rank.node,
                            .world_rank = number,
                            .slower = slower,
                            .windows = lasting ? rank.very_slow : rank.slow,
                            .lasting = lasting});
  }
  std::sort(stragglers.begin(), stragglers.end(), [](const Straggler& a, const Straggler& b) {
    return std::pair(a.lasting, a.slower) > std::pair(b.lasting, b.slower);
  });
  return stragglers;
}

}  // namespace tri
