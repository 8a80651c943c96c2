// Jobs of the executable in which a rank hangs: starts each, observes whether it ends by itself, and reads its output.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/mp/hang_cases.h"

namespace tri::hangs {

inline constexpr double kEndsWithin = 5;  // seconds after the deadline

struct Verdict {
  std::string kind, headline;
  struct Suspect {
    int rank;
    std::string kind;
  };
  std::vector<Suspect> suspects;
};

struct Outcome {
  std::optional<int> status;      // none: it did not end
  std::optional<double> seconds;  // from the hang to the end; none: nothing hung
  double deadline = 0;            // seconds
  int orphans = 0;
  std::optional<Verdict> verdict;
  std::string output;  // and the last report
};

// Only the hanging rank is named; if several take part in the hang, one of them.
bool is_right(const Case& c, const Outcome& outcome);
// Returns the seconds after its deadline; none: it did not end, or nothing hung.
std::optional<double> lateness_of(const Outcome& outcome);
bool is_late(const Outcome& outcome);

class Jobs {
 public:
  Jobs(const std::string& mpirun, const std::string& program);
  ~Jobs();

  // Creates a layout's run from which others resume, and an undisturbed one, which ends normally and counts occasions.
  void prepare(int layout);
  // Returns how often the rank reaches the place.
  int64_t occasions(int layout, const std::string& place, int rank) const;
  // Runs the job of a case; `slower`: factor for the deadlines.
  Outcome run(const Case& c, int number, double slower);
  // Runs `trireme eval` on the first layout's run with a stopped rank: it is ended and named as in training. There is
  // no run folder, so the report is text on stderr.
  bool use_is_watched() const;

 private:
  std::string base_of(int layout) const { return folder_ + "/base" + std::to_string(layout); }
  // Writes to `folder`: the run, the ranks' flight recorders, their output.
  std::optional<int> train(int layout, const std::string& folder, int steps, double slower,
                           const Strings& settings) const;

  const std::string mpirun_, program_;
  std::string folder_;
  std::mutex mutex_;
  std::map<int, std::map<std::pair<std::string, int>, int64_t>> occasions_;  // [layout][place, rank]
};

}  // namespace tri::hangs
