// precision.fp8_guard: when layers stop multiplying FP8 (lib/model/fp8.h). It decides by numbers that are the same on
// all ranks, and what it remembers goes into checkpoints, so that a run that goes on decides as one that never stopped.
//   range  a tensor of the layer lost more than the shares that fp8_report.h warns of, in kRangeSteps steps in
//          succession
//   loss   was more than kLossRatio times its decayed mean in kLossSteps steps in succession: all layers fall
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/model/fp8.h"

namespace tri {

class Fp8Guard {
 public:
  static constexpr int kRangeSteps = 16, kLossSteps = 4;
  static constexpr double kLossRatio = 1.2, kLossDecay = 0.98;

  explicit Fp8Guard(const Config& config);

  // After a step that was finite; `numbers` by slot. Which layers fell in it and why, for people; "" mostly.
  std::string step(double loss, std::span<const Fp8Numbers> numbers);
  std::vector<bool> fallen() const;  // [layer]

  std::string text() const;
  // Error (kFile): it is none of so many layers.
  Result<void> load(const std::string& text);
  // The layers that have fallen by such a text, for people: "0, 2"; "" where none has.
  static std::string fallen_of(const std::string& text);

 private:
  static constexpr int kFallen = -1;
  bool never_fp8(size_t layer) const;

  const Config& config_;
  std::vector<int> beyond_;  // [layer]: steps in succession, or kFallen
  double mean_loss_ = 0;     // 0: no step yet
  int high_ = 0;             // steps in succession
};

}  // namespace tri
