// Detects drift: steps that take longer than at first, or a loss or gradient norm that has grown.
//
//   step time   median of the last kRecent steps against that of steps kSkipped .. kSkipped + kBaseline of the attempt
//   loss, norm  ... against the lowest such median so far: they decrease during training and then stay
//
// A growth is reported once and then becomes the baseline. Natural variation of steps (other programs on the same
// cores) raises the reporting threshold: kSigmas of the medians' own spread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/ranks/rank_times.h"

namespace tri {

struct Drift {
  std::string quantity;         // "step time", "loss", "gradient norm"
  double before = 0, now = 0;   // medians; step time in seconds
  double growth = 0;            // 0.03: by 3 %
  int64_t since = 0, step = 0;  // the approximate step at which it began; the step at which it was found
  std::optional<double> mfu;    // current, if known
  // For the step time: the part that grew the most, and its share of the growth; "": unknown.
  std::string part;
  double part_share = 0;  // 1: all of it
};
// Returns "steps take 3.1 % longer than before, 812 ms instead of 787 ms, since about step 1400; the largest part is dp
// ..."
std::string to_string(const Drift& drift);

// One quantity over the steps.
class DriftSeries {
 public:
  static constexpr size_t kSkipped = 20, kBaseline = 100, kRecent = 200, kBlock = 10;
  static constexpr double kSigmas = 6;

  enum class Reference { kFirst, kLowest };
  // `least`: the smallest growth to report.
  DriftSeries(Reference reference, double least) : reference_(reference), least_(least) {}

  struct Growth {
    double before = 0, now = 0;
    int64_t since = 0;
  };
  // Ignores values that are not finite.
  std::optional<Growth> add(int64_t step, double value);

 private:
  struct Block {
    int64_t first_step;
    double median;
  };
  void set_baseline(const std::vector<double>& values);
  int64_t since(double level) const;

  const Reference reference_;
  const double least_;
  size_t count_ = 0;
  std::vector<double> first_;  // the baseline's values, until it is known
  std::deque<double> recent_;  // the last kRecent
  std::deque<Block> blocks_;   // since the baseline
  int64_t block_step_ = 0;
  double baseline_ = 0, baseline_spread_ = 0;  // the median, and the standard deviation of such medians
};

class DriftWatch {
 public:
  struct Step {
    int64_t step = 0;
    double seconds = 0, loss = 0, grad_norm = 0;
    std::optional<double> mfu;
    bool checkpoint = false;  // a checkpoint was being written during the step
  };

  std::vector<Drift> add(const Step& step);
  // Adds the times of all ranks; without them "checkpoint" is the only part that can be named.
  void add(const RankMesh& mesh, const RankWindow& window);

 private:
  struct Parts {
    int64_t first_step, last_step;
    std::vector<double> seconds;
  };
  void name_part(Drift& drift);
  std::optional<double> growth_without_checkpoints() const;

  DriftSeries time_{DriftSeries::Reference::kFirst, 0.02}, loss_{DriftSeries::Reference::kLowest, 0.05},
      norm_{DriftSeries::Reference::kLowest, 2.0};
  int64_t first_step_ = 0;
  std::deque<Step> recent_;
  std::vector<std::string> part_names_;
  std::vector<double> baseline_parts_;
  int64_t baseline_windows_ = 0;
  std::deque<Parts> windows_;
};

}  // namespace tri
