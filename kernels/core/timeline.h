// Where a stream's time goes, step by step: every moment between begin() and end() belongs to one TimeCategory. The
// stream is marked by timed events where the category changes; nobody waits for them, and they are read when the step
// is over.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/span_recorder.h"

namespace tri {

enum class TimeCategory {
  kCompute,  // kernels, and gaps between them
  kTp,       // waits for tensor-parallel transfers
  kPp,       // waits for other stages: their transfers and, mostly, their work
  kDp,       // waits for data-parallel transfers. Sums over all ranks: kPp, where there are stages; else kDp; else kTp
  kOptimizer,  // norms, clipping, the update
  // Of a timeline with details; else they are kCompute:
  kForward,   // forwards, and what follows them until the category changes
  kBackward,  // backwards
};
inline constexpr int kNumTimeCategories = 7;

// Whether a timeline tells forwards from backwards, and when gradients are ready.
enum class TimelineDetail { kOff, kOn };

constexpr const char* time_category_name(TimeCategory category) {
  constexpr std::array kNames{"compute", "tp", "pp", "dp", "optimizer", "forward", "backward"};
  static_assert(kNames.size() == kNumTimeCategories);
  return kNames[static_cast<size_t>(category)];
}

class Timeline {
 public:
  struct Times {
    std::array<double, kNumTimeCategories> seconds{};  // [TimeCategory]
    std::array<double, kNumTimeCategories> work{};     // ... in which the stream was at work: Event
    std::vector<double> pp_waits;                      // one a wait; their sum is seconds[kPp]
    // With details: seconds from begin() until gradients were ready, the mean over the notes of the step; 0 of none.
    double ready = 0;
    double of(TimeCategory category) const { return seconds[static_cast<size_t>(category)]; }
    double total() const;
  };

  // Follows `stream` until destroyed. `device` and `stream` outlive it.
  Timeline(Device& device, Stream& stream, TimelineDetail detail = TimelineDetail::kOff);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void begin();  // of a step: kCompute
  // What comes next is accounted to `category`; returns what was before. Nothing outside a step.
  TimeCategory enter(TimeCategory category);
  // An action begins, which is kForward or kBackward. Nothing without details.
  void enter_action(TimeCategory category);
  void note_ready();  // gradients are ready to be reduced. Nothing without details
  void end();         // nothing outside a step
  // Of the last step, once the host has waited for the stream.
  Times take();

 private:
  struct Mark {
    std::unique_ptr<Event> event;
    TimeCategory category = TimeCategory::kCompute;  // from here on
    bool ready = false;                              // a note
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

// For the time of enqueueing what belongs to `category`, where the stream has a timeline.
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
