// What the streams of a rank run, moment by moment, for a timeline of some steps: marks with timed events, where a span
// begins or ends and where a transfer has come to. Nobody waits for the events while the steps run; they are read when
// all streams have been waited for. A stream that is not followed pays a look at a null pointer.
//
// Times are nanoseconds of the host's CLOCK_MONOTONIC. A device's own clock is set by the host's at every begin_step().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace tri {

enum class SpanKind : uint8_t {
  kOperation,  // a kernel, or the few of one operation
  kAction,     // of the Plan, or the update
  kWait,       // the stream waits for transfers, or runs those that it would wait for
};

// How far a transfer is, as its stream comes past: kernels as in io/flight_recorder/image.h.
enum class TransferMark : uint8_t { kJoined, kSent, kCompleted };

class SpanRecorder {
 public:
  // Of one span that is over. `a`, `b`: microbatch and chunk of an action; else 0.
  struct Span {
    SpanKind kind = SpanKind::kOperation;
    uint16_t stream = 0;  // in streams()
    int32_t a = 0, b = 0;
    int64_t step = 0;
    const char* name = "";
    int64_t begin = 0, end = 0;
  };
  struct Transfer {
    TransferMark mark = TransferMark::kJoined;
    uint8_t operation = 0;  // ChannelOperation, of kJoined
    uint16_t stream = 0;
    uint32_t channel = 0, sequence = 0;
    int64_t step = 0;
    int64_t time = 0;
  };
  struct Recording {
    std::vector<std::string> streams;
    std::vector<Span> spans;          // in the order of their ends, by stream
    std::vector<Transfer> transfers;  // in the order in which the host enqueued the marks
    int64_t clock_error = 0;          // nanoseconds, at most, between the device's times and the host's
    int64_t lost_marks = 0;           // beyond the most
  };

  // At most so many marks are kept: an event each, of some hundred bytes.
  SpanRecorder(Device& device, size_t most_marks) : device_(device), most_marks_(most_marks) {}
  ~SpanRecorder();
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  // From here on, until the recorder ends or take(). One host thread enqueues on all followed streams.
  void follow(Stream& stream);
  // What is enqueued from here on belongs to `step`. Waits for `clock`, one of the device's streams, which is idle.
  void begin_step(int64_t step, Stream& clock);

  void begin(Stream& stream, SpanKind kind, const char* name, int a = 0, int b = 0);  // spans of a stream nest
  void end(Stream& stream);
  void transfer(Stream& stream, TransferMark mark, uint32_t channel, uint32_t sequence, uint8_t operation);

  // Once the host has waited for all followed streams, which are followed no more.
  Recording take();

 private:
  enum class Type : uint8_t { kBegin, kEnd, kTransfer };
  struct Mark {
    Type type;
    uint8_t kind;       // SpanKind, TransferMark
    uint8_t operation;  // of a transfer
    uint16_t stream;
    uint16_t clock;  // in clocks_
    int32_t a, b;    // of a transfer: channel, sequence
    const char* name;
    std::unique_ptr<Event> event;
  };
  // A moment by both clocks.
  struct ClockPoint {
    int64_t step;
    std::unique_ptr<Event> event;
    int64_t host = 0, error = 0;
  };
  void add(Stream& stream, Mark mark);
  int64_t time_of(const Mark& mark) const;

  Device& device_;
  const size_t most_marks_;
  std::vector<Stream*> streams_;
  std::vector<Mark> marks_;
  std::vector<ClockPoint> clocks_;
  int64_t lost_marks_ = 0;
};

// For the time of enqueueing what makes up a span, where the stream is followed.
class SpanScope {
 public:
  SpanScope(Stream& stream, SpanKind kind, const char* name, int a = 0, int b = 0)
      : stream_(stream.spans() != nullptr ? &stream : nullptr) {
    if (stream_ != nullptr) stream_->spans()->begin(*stream_, kind, name, a, b);
  }
  ~SpanScope() {
    if (stream_ != nullptr && stream_->spans() != nullptr) stream_->spans()->end(*stream_);
  }
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;

 private:
  Stream* stream_;
};

}  // namespace tri
