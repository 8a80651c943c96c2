#include "kernels/core/profile.h"

#include <algorithm>

namespace tri {

OpProfile::OpProfile(Device& device, Stream& stream) : device_(device), stream_(stream) { stream_.set_profile(this); }

OpProfile::~OpProfile() { stream_.set_profile(nullptr); }

void OpProfile::begin(const char* op) {
  if (used_ == spans_.size())
    spans_.push_back({op, device_.make_event(EventKind::kTimed), device_.make_event(EventKind::kTimed)});
  spans_[used_].op = op;
  stream_.record(*spans_[used_].begin);
}

void OpProfile::end() { stream_.record(*spans_[used_++].end); }

std::vector<OpProfile::Row> OpProfile::take() {
  std::vector<Row> rows;
  double inside = 0;
  for (size_t i = 0; i < used_; ++i) {
    const double seconds = spans_[i].end->seconds_after(*spans_[i].begin);
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.op == spans_[i].op; });
    if (row == rows.end()) row = rows.insert(rows.end(), Row{spans_[i].op});
    ++row->calls;
    row->seconds += seconds;
    inside += seconds;
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  if (used_ > 0)
    rows.push_back(
        {"between", static_cast<int>(used_) - 1, spans_[used_ - 1].end->seconds_after(*spans_[0].begin) - inside});
  used_ = 0;
  return rows;
}

}  // namespace tri
