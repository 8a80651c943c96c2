// Time by kind of operation on one stream, from events around every operation: what `trireme bench step` prints.
// The events cost a microsecond or two each, so profiled steps are apart from timed ones.
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

  // Follows `stream` until destroyed. `device` and `stream` outlive it.
  OpProfile(Device& device, Stream& stream);
  ~OpProfile();
  OpProfile(const OpProfile&) = delete;
  OpProfile& operator=(const OpProfile&) = delete;

  void begin(const char* op);
  void end();

  // After the host has waited for the stream: what was profiled since the last call, longest first. The last row is
  // "between": from the first operation's begin to the last one's end, outside any of them.
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

// For the time of one enqueueing call.
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
  const SpanScope span_;  // ends last, began first
};

}  // namespace tri
