#include "kernels/core/timeline.h"

#include <numeric>

namespace tri {

double Timeline::Times::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

Timeline::Timeline(Device& device, Stream& stream, TimelineDetail detail)
    : device_(device), stream_(stream), detail_(detail) {
  stream_.set_timeline(this);
}

Timeline::~Timeline() { stream_.set_timeline(nullptr); }

void Timeline::mark(TimeCategory category) {
  if (used_ == marks_.size()) marks_.push_back({device_.make_event(EventKind::kTimed)});
  marks_[used_].category = category;
  marks_[used_].ready = false;
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

void Timeline::enter_action(TimeCategory category) {
  if (detail_ == TimelineDetail::kOn) enter(category);
}

void Timeline::note_ready() {
  if (!in_step_ || detail_ == TimelineDetail::kOff) return;
  mark(category_);
  marks_[used_ - 1].ready = true;
}

void Timeline::end() {
  if (!in_step_) return;
  mark(TimeCategory::kCompute);
  in_step_ = false;
}

Timeline::Times Timeline::take() {
  Times times;
  const bool threads = device_.kind() == DeviceKind::kCpu;
  int notes = 0;
  for (size_t i = 0; i + 1 < used_; ++i) {
    const Event &begin = *marks_[i].event, &end = *marks_[i + 1].event;
    const double seconds = end.seconds_after(begin);
    times.seconds[static_cast<size_t>(marks_[i].category)] += seconds;
    times.work[static_cast<size_t>(marks_[i].category)] += threads ? end.work_seconds_after(begin) : seconds;
    if (marks_[i].category == TimeCategory::kPp) times.pp_waits.push_back(seconds);
    if (!marks_[i].ready) continue;
    times.ready += begin.seconds_after(*marks_[0].event);
    ++notes;
  }
  if (notes > 0) times.ready /= notes;
  used_ = 0;
  return times;
}

}  // namespace tri
