#include "kernels/core/timeline.h"

#include <numeric>

namespace tri {

double Timeline::Times::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

Timeline::Timeline(Device& device, Stream& stream) : device_(device), stream_(stream) { stream_.set_timeline(this); }

Timeline::~Timeline() { stream_.set_timeline(nullptr); }

void Timeline::mark(Spend spend) {
  if (used_ == marks_.size()) marks_.push_back({device_.make_event(EventKind::kTimed)});
  marks_[used_].spend = spend;
  stream_.record(*marks_[used_++].event);
  spend_ = spend;
}

void Timeline::begin() {
  used_ = 0;
  in_step_ = true;
  mark(Spend::kCompute);
}

Spend Timeline::enter(Spend spend) {
  const Spend before = spend_;
  if (in_step_ && spend != spend_) mark(spend);
  return before;
}

void Timeline::end() {
  if (!in_step_) return;
  mark(Spend::kCompute);
  in_step_ = false;
}

Timeline::Times Timeline::take() {
  Times times;
  for (size_t i = 0; i + 1 < used_; ++i) {
    const double seconds = marks_[i + 1].event->seconds_after(*marks_[i].event);
    times.seconds[static_cast<size_t>(marks_[i].spend)] += seconds;
    if (marks_[i].spend == Spend::kPp) times.pp_waits.push_back(seconds);
  }
  used_ = 0;
  return times;
}

}  // namespace tri
