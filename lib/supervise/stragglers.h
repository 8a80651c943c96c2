// Ranks that compute for longer than others of their stage, and so hold all of them up: by the compute time of steps that
// their black boxes show, over windows of steps. Pure: it knows neither clocks nor nodes' health.
//
// Ranks of a stage do the same work, so each is compared with the median of its stage; a stage of fewer than three ranks
// has nobody to compare with. A window ends when every rank has timed so many steps since the last one's end.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/supervise/agent_messages.h"
#include "lib/supervise/thresholds.h"

namespace tri {

struct Straggler {
  std::string node;
  int world_rank = 0;
  double slower = 0;     // than the median of its stage, a share of 1
  int windows = 0;       // on end
  bool lasting = false;  // false: for half of `straggler_windows` half of `straggler_percent`, a warning

  std::string text() const;  // "rank 3 on node1 computes 12 % longer than its stage's median, for 10 windows of steps"
};

class Stragglers {
 public:
  void clear() { ranks_.clear(); }  // another attempt begins
  void take(const std::string& node, std::span<const RankSight> ranks);
  // Where a window has ended with it: those that have become stragglers, the slowest first; each is told once as a
  // warning and once as lasting, until it has kept up for a window. `num_ranks`: of the attempt.
  std::vector<Straggler> judge(size_t num_ranks, const Thresholds& thresholds);

 private:
  struct Rank {
    std::string node;
    int stage = 0;
    int64_t steps = 0, window_steps = 0;  // seen last, and at the last window's end
    double seconds = 0, window_seconds = 0;
    int slow = 0, very_slow = 0;  // windows on end
    double mean() const { return (seconds - window_seconds) / static_cast<double>(steps - window_steps); }
  };
  std::map<int, Rank> ranks_;  // by world rank
};

}  // namespace tri
