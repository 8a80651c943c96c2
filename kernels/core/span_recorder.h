// Records what the streams of a rank run, for a timeline of some steps. Timed events mark where a span begins or ends
// and how far a transfer is. Nothing waits for the events during the steps; take() reads them after all streams have
// been waited for. A stream that is not followed pays for one null check.
//
// Times are nanoseconds of the host's CLOCK_MONOTONIC. Every begin_step() aligns the device's clock with the host's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace tri {

enum class SpanKind : uint8_t {
  kOperation,  // a kernel, or the few kernels of one operation
  kAction,     // an action of the Plan, or the update
  kWait,       // the stream waits for transfers, or runs those that it would wait for
};

// How far a transfer is when its stream reaches the mark: kernels as in io/flight_recorder/image.h.
enum class TransferMark : uint8_t { kJoined, kSent, kCompleted };

class SpanRecorder {
 public:
  // A finished span. `a`, `b`: microbatch and chunk of an action; else 0.
  struct Span {
    SpanKind kind = SpanKind::kOperation;
    uint16_t stream = 0;  // index into streams
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
    std::vector<Span> spans;          // by stream, in the order of their ends
    std::vector<Transfer> transfers;  // in the order in which the host enqueued the marks
    int64_t clock_error = 0;          // the most by which the device's times may differ from the host's, in nanoseconds
    int64_t lost_marks = 0;           // marks dropped because the recorder was full
  };

  // Keeps at most `most_marks` marks, an event of some hundred bytes each.
  SpanRecorder(Device& device, size_t most_marks) : device_(device), most_marks_(most_marks) {}
  ~SpanRecorder();
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  // Records `stream` until the recorder is destroyed or take() is called. One host thread enqueues on all followed
  // streams.
  void follow(Stream& stream);
  // Assigns everything enqueued from here on to `step`. Waits for `clock`, an idle stream of the device.
  void begin_step(int64_t step, Stream& clock);

  void begin(Stream& stream, SpanKind kind, const char* name, int a = 0, int b = 0);  // spans of a stream nest
  void end(Stream& stream);
  void transfer(Stream& stream, TransferMark mark, uint32_t channel, uint32_t sequence, uint8_t operation);

  // Returns the recording and stops following the streams, all of which the host must have waited for.
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
  // One moment by both clocks.
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

// Records a span around the enqueueing of its work, if the stream is followed.
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
