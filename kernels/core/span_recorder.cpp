#include "kernels/core/span_recorder.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tri {
namespace {

int64_t host_now() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

SpanRecorder::~SpanRecorder() {
  for (Stream* stream : streams_) stream->set_spans(nullptr);
}

void SpanRecorder::follow(Stream& stream) {
  streams_.push_back(&stream);
  stream.set_spans(this);
}

// The event happens between two reads of the host's clock. Keeps the try with the smallest interval.
void SpanRecorder::begin_step(int64_t step, Stream& clock) {
  constexpr int kTries = 5;
  ClockPoint best;
  for (int i = 0; i < kTries; ++i) {
    ClockPoint point{.step = step, .event = device_.make_event(EventKind::kTimed)};
    const int64_t before = host_now();
    clock.record(*point.event);
    point.event->synchronize();
    const int64_t after = host_now();
    point.host = before + (after - before) / 2;
    point.error = (after - before + 1) / 2;
    if (i == 0 || point.error < best.error) best = std::move(point);
    if (best.event->host_nanoseconds()) {  // device and host share one clock
      best.error = 0;
      break;
    }
  }
  clocks_.push_back(std::move(best));
}

void SpanRecorder::add(Stream& stream, Mark mark) {
  if (marks_.size() == most_marks_ || clocks_.empty()) {
    ++lost_marks_;
    return;
  }
  const auto found = std::find(streams_.begin(), streams_.end(), &stream);
  mark.stream = static_cast<uint16_t>(found - streams_.begin());
  mark.clock = static_cast<uint16_t>(clocks_.size() - 1);
  mark.event = device_.make_event(EventKind::kTimed);
  stream.record(*mark.event);
  marks_.push_back(std::move(mark));
}

void SpanRecorder::begin(Stream& stream, SpanKind kind, const char* name, int a, int b) {
  add(stream, {.type = Type::kBegin, .kind = static_cast<uint8_t>(kind), .a = a, .b = b, .name = name});
}

void SpanRecorder::end(Stream& stream) { add(stream, {.type = Type::kEnd}); }

void SpanRecorder::transfer(Stream& stream, TransferMark mark, uint32_t channel, uint32_t sequence, uint8_t operation) {
  add(stream, {.type = Type::kTransfer,
               .kind = static_cast<uint8_t>(mark),
               .operation = operation,
               .a = static_cast<int32_t>(channel),
               .b = static_cast<int32_t>(sequence)});
}

int64_t SpanRecorder::time_of(const Mark& mark) const {
  if (const auto time = mark.event->host_nanoseconds()) return *time;
  const ClockPoint& clock = clocks_[mark.clock];
  return clock.host + std::llround(mark.event->seconds_after(*clock.event) * 1e9);
}

SpanRecorder::Recording SpanRecorder::take() {
  Recording recording;
  for (Stream* stream : streams_) {
    stream->set_spans(nullptr);
    recording.streams.push_back(stream->name());
  }
  for (const ClockPoint& clock : clocks_) recording.clock_error = std::max(recording.clock_error, clock.error);
  std::vector<std::vector<Span>> open(streams_.size());  // [stream], outermost first
  for (const Mark& mark : marks_) {
    const int64_t time = time_of(mark), step = clocks_[mark.clock].step;
    auto& spans = open[mark.stream];
    if (mark.type == Type::kBegin) {
      spans.push_back({.kind = static_cast<SpanKind>(mark.kind),
                       .stream = mark.stream,
                       .a = mark.a,
                       .b = mark.b,
                       .step = step,
                       .name = mark.name,
                       .begin = time});
    } else if (mark.type == Type::kEnd && !spans.empty()) {  // else the span began before this recorder
      spans.back().end = time;
      recording.spans.push_back(spans.back());
      spans.pop_back();
    } else if (mark.type == Type::kTransfer) {
      recording.transfers.push_back({.mark = static_cast<TransferMark>(mark.kind),
                                     .operation = mark.operation,
                                     .stream = mark.stream,
                                     .channel = static_cast<uint32_t>(mark.a),
                                     .sequence = static_cast<uint32_t>(mark.b),
                                     .step = step,
                                     .time = time});
    }
  }
  recording.lost_marks = lost_marks_;
  streams_.clear();
  marks_.clear();
  clocks_.clear();
  lost_marks_ = 0;
  return recording;
}

}  // namespace tri
