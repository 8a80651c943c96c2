// Where a stream's time goes, step by step: every moment between begin() and end() belongs to one TimeCategory. Timed
// events mark the changes of category. Nothing waits for them during the step; take() reads them after it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/span_recorder.h"

namespace tri {

enum class TimeCategory {
  kCompute,  // kernels and the gaps between them
  kTp,       // waits for tensor-parallel transfers
  kCp,       // waits for the keys and values of other cp ranks, and for their gradients
  kEp,       // waits for rows of experts, and what moves them on the compute stream
  kPp,       // waits for other stages: for their transfers and, mostly, for their work
  // waits for data-parallel transfers. Sums over all ranks count as kPp if there are stages, else as kDp, else as kTp
  kDp,
  kOptimizer,  // norms, clipping, the update
  // Only in a timeline with details; otherwise these are part of kCompute:
  kForward,   // forward actions, and what follows them until the category changes
  kBackward,  // backward actions
};
inline constexpr int kNumTimeCategories = 9;

// Whether a timeline distinguishes forward from backward actions and notes when gradients are ready.
enum class TimelineDetail { kOff, kOn };

constexpr const char* time_category_name(TimeCategory category) {
  constexpr std::array kNames{"compute", "tp", "cp", "ep", "pp", "dp", "optimizer", "forward", "backward"};
  static_assert(kNames.size() == kNumTimeCategories);
  return kNames[static_cast<size_t>(category)];
}

class Timeline {
 public:
  struct Times {
    std::array<double, kNumTimeCategories> seconds{};  // [TimeCategory]
    // the part in which the stream was running: Event::work_seconds_after
    std::array<double, kNumTimeCategories> work{};
    std::vector<double> pp_waits;  // one per wait; their sum is seconds[kPp]
    // With details: seconds from begin() until gradients were ready, the mean over the step's notes; 0 without notes.
    double ready = 0;
    double of(TimeCategory category) const { return seconds[static_cast<size_t>(category)]; }
    double total() const;
  };

  // Measures `stream` until destroyed. `device` and `stream` outlive it. Only the thread that enqueues may call it.
  Timeline(Device& device, Stream& stream, TimelineDetail detail = TimelineDetail::kOff);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void begin();  // begins a step, in kCompute
  // Accounts the following work to `category` and returns the previous one. Has no effect outside a step.
  TimeCategory enter(TimeCategory category);
  // Begins an action, kForward or kBackward. Has no effect without details.
  void enter_action(TimeCategory category);
  void note_ready();  // notes that gradients are ready to be reduced; has no effect without details
  void end();         // ends the step; has no effect outside one
  // Returns the times of the last step. The host must have waited for the stream.
  Times take();

 private:
  struct Mark {
    std::unique_ptr<Event> event;
    TimeCategory category = TimeCategory::kCompute;  // from here on
    bool ready = false;                              // note_ready()
  };
  void mark(TimeCategory category);

  Device& device_;
  Stream& stream_;
  const TimelineDetail detail_;
  std::vector<Mark> marks_;  // reused from step to step
  size_t used_ = 0;
  bool in_step_ = false;
  TimeCategory category_ = TimeCategory::kCompute;
};

// Accounts the enqueueing of work to `category`, if the stream has a timeline.
class TimeCategoryScope {
 public:
  TimeCategoryScope(Stream& stream, TimeCategory category)
      : timeline_(stream.timeline()), span_(stream, SpanKind::kWait, time_category_name(category)) {
    if (timeline_ != nullptr) before_ = timeline_->enter(category);
  }
  ~TimeCategoryScope() {
    if (timeline_ != nullptr) timeline_->enter(before_);
  }
  TimeCategoryScope(const TimeCategoryScope&) = delete;
  TimeCategoryScope& operator=(const TimeCategoryScope&) = delete;

 private:
  Timeline* timeline_;
  TimeCategory before_ = TimeCategory::kCompute;
  const SpanScope span_;
};

}  // namespace tri
