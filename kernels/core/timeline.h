// Where a stream's time goes, step by step: every moment between begin() and end() belongs to one Spend. The stream is
// marked by timed events where the spend changes; nobody waits for them, and they are read when the step is over.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/core/device.h"

namespace tri {

enum class Spend {
  kCompute,  // kernels, and gaps between them
  kTp,       // waits for tensor-parallel transfers
  kPp,       // waits for other stages: their transfers and, mostly, their work
  kDp,       // waits for data-parallel transfers. Sums over all ranks: kPp, where there are stages; else kDp; else kTp
  kOptimizer,  // norms, clipping, the update
};
inline constexpr int kNumSpends = 5;

class Timeline {
 public:
  struct Times {
    std::array<double, kNumSpends> seconds{};  // [Spend]
    std::vector<double> pp_waits;              // one a wait; their sum is seconds[kPp]
    double of(Spend spend) const { return seconds[static_cast<size_t>(spend)]; }
    double total() const;
  };

  // Follows `stream` until destroyed. `device` and `stream` outlive it.
  Timeline(Device& device, Stream& stream);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void begin();  // of a step: kCompute
  // What comes next is spent on `spend`; returns what was before. Nothing outside a step.
  Spend enter(Spend spend);
  void end();  // nothing outside a step
  // Of the last step, once the host has waited for the stream.
  Times take();

 private:
  struct Mark {
    std::unique_ptr<Event> event;
    Spend spend = Spend::kCompute;  // from here on
  };
  void mark(Spend spend);

  Device& device_;
  Stream& stream_;
  std::vector<Mark> marks_;  // reused from step to step
  size_t used_ = 0;
  bool in_step_ = false;
  Spend spend_ = Spend::kCompute;
};

// For the time of enqueueing what belongs to `spend`, where the stream has a timeline.
class SpendScope {
 public:
  SpendScope(Stream& stream, Spend spend) : timeline_(stream.timeline()) {
    if (timeline_ != nullptr) before_ = timeline_->enter(spend);
  }
  ~SpendScope() {
    if (timeline_ != nullptr) timeline_->enter(before_);
  }
  SpendScope(const SpendScope&) = delete;
  SpendScope& operator=(const SpendScope&) = delete;

 private:
  Timeline* timeline_;
  Spend before_ = Spend::kCompute;
};

}  // namespace tri
