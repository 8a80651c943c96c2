// The drift guard: whether steps take longer than at first, and whether the loss or the gradient norm has grown.
//
//   step time   median of the last kRecent steps against that of steps kSkipped .. kSkipped + kBaseline of the attempt
//   loss, norm  ... against the lowest such median so far: they fall as training goes on, and then stay
//
// A growth is reported once; from then on it is the baseline. Natural variation of steps (other programs on the same
// cores) raises what counts as growth: kSigmas of the medians' own spread.
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
  double before = 0, now = 0;   // medians; of the step time: seconds
  double growth = 0;            // 0.03: by 3 %
  int64_t since = 0, step = 0;  // about the step with which it began; when it was found
  std::optional<double> mfu;    // now, where it is known
  // Of the step time: the part that grew the most, and what it explains of the growth; "": not known.
  std::string part;
  double part_share = 0;  // 1: all of it
};
// "steps take 3.1 % longer than before, 812 ms instead of 787 ms, since about step 1400; the largest part is dp ..."
std::string to_string(const Drift& drift);

// One quantity, step after step.
class DriftSeries {
 public:
  static constexpr size_t kSkipped = 20, kBaseline = 100, kRecent = 200, kBlock = 10;
  static constexpr double kSigmas = 6;

  enum class Reference { kFirst, kLowest };
  // `least`: the smallest growth that is reported.
  DriftSeries(Reference reference, double least) : reference_(reference), least_(least) {}

  struct Growth {
    double before = 0, now = 0;
    int64_t since = 0;
  };
  // Values that are not finite are ignored.
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
    bool checkpoint = false;  // one was being written alongside it
  };

  std::vector<Drift> add(const Step& step);
  // Where the time of all ranks goes; without it no part is named but "checkpoint".
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
