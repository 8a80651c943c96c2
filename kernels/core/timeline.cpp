#include "kernels/core/timeline.h"

#include <numeric>

namespace tri {

double Timeline::Times::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

Timeline::Timeline(Device& device, Stream& stream) : device_(device), stream_(stream) { stream_.set_timeline(this); }

Timeline::~Timeline() { stream_.set_timeline(nullptr); }

void Timeline::mark(TimeCategory category) {
  if (used_ == marks_.size()) marks_.push_back({device_.make_event(EventKind::kTimed)});
  marks_[used_].category = category;
  stream_.record(*marks_[used_++].event);
  category_ = category;
}

void Timeline::begin() {
  used_ = 0;
  in_step_ = true;
  mark(TimeCategory::kCompute);
}

TimeCategory Timeline::enter(TimeCategory category) {
  const TimeCategory before = category_;
  if (in_step_ && category != category_) mark(category);
  return before;
}

void Timeline::end() {
  if (!in_step_) return;
  mark(TimeCategory::kCompute);
  in_step_ = false;
}

Timeline::Times Timeline::take() {
  Times times;
  for (size_t i = 0; i + 1 < used_; ++i) {
    const double seconds = marks_[i + 1].event->seconds_after(*marks_[i].event);
    times.seconds[static_cast<size_t>(marks_[i].category)] += seconds;
    if (marks_[i].category == TimeCategory::kPp) times.pp_waits.push_back(seconds);
  }
  used_ = 0;
  return times;
}

}  // namespace tri
