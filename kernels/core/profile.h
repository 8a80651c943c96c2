// Time by kind of operation on one stream, measured by events around every operation. `trireme bench step` prints it.
// The events cost one or two microseconds each, so profiled steps are not used as timed ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/span_recorder.h"

namespace tri {

class OpProfile {
 public:
  struct Row {
    std::string op;
    int calls = 0;
    double seconds = 0;
  };

  // Profiles `stream` until destroyed. `device` and `stream` outlive it. Only the thread that enqueues may call it.
  OpProfile(Device& device, Stream& stream);
  ~OpProfile();
  OpProfile(const OpProfile&) = delete;
  OpProfile& operator=(const OpProfile&) = delete;

  void begin(const char* op);
  void end();

  // Returns what was profiled since the last call, longest first. The host must have waited for the stream. The last
  // row, "between", is the time outside operations, from the first begin to the last end.
  std::vector<Row> take();

 private:
  struct Span {
    const char* op;
    std::unique_ptr<Event> begin, end;
  };
  Device& device_;
  Stream& stream_;
  std::vector<Span> spans_;  // reused from step to step
  size_t used_ = 0;
};

// Profiles one enqueueing call.
class OpScope {
 public:
  OpScope(Stream& stream, const char* op) : profile_(stream.profile()), span_(stream, SpanKind::kOperation, op) {
    if (profile_ != nullptr) profile_->begin(op);
  }
  ~OpScope() {
    if (profile_ != nullptr) profile_->end();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  OpProfile* profile_;
  const SpanScope span_;  // begins first and ends last
};

}  // namespace tri
