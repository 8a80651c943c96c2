#include "lib/observe/timeline/hang_trace.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "io/perfetto/trace_writer.h"

namespace tri {
namespace {

// Has no end event where another slice follows, because that slice's event ends it.
struct HangEvent {
  enum class Type { kBegin, kEnd, kInstant };
  int64_t time = 0;  // nanoseconds since 1970
  Type type = Type::kBegin;
  uint64_t track = 0;
  std::string name = "";
  int64_t number = 0;  // argument "number": step, microbatch, sequence
};

// The tracks of one rank, filled from its record.
class RankTracks {
 public:
  RankTracks(const RankRecord& record, PerfettoWriter& writer, std::vector<HangEvent>& events)
      : record_(record),
        events_(events),
        process_(writer.add_process(record.world_rank + 1, to_string_place(record), {})) {
    phases_ = writer.add_track(process_, 0, "phase");
    host_ = writer.add_track(process_, 1, "host");
    actions_ = writer.add_track(process_, 2, "compute, as enqueued");
    for (size_t i = 0; i < record.channels.size(); ++i)
      channels_.push_back(writer.add_track(process_, 3 + static_cast<int>(i), record.channels[i].name));
  }

  void fill() {
    for (const EventRecord& event : record_.events) add(event);
    end(phase_open_, phases_);
    end(host_open_, host_);
    // Slices nest: the operation enqueued first is the outermost.
    for (size_t i = 0; i < channels_.size(); ++i)
      for (int j = 0; j < num_open_[i]; ++j) end(true, channels_[i]);
  }

 private:
  int64_t time_of(double seconds_ago) const { return std::llround((record_.taken - seconds_ago) * 1e9); }
  void begin(bool& open, uint64_t track, int64_t time, std::string_view name, int64_t number) {
    if (open) events_.push_back({time, HangEvent::Type::kEnd, track});
    events_.push_back({time, HangEvent::Type::kBegin, track, std::string(name), number});
    open = true;
  }
  void end(bool open, uint64_t track) {
    if (open) events_.push_back({time_of(0), HangEvent::Type::kEnd, track});
  }

  void add(const EventRecord& event) {
    const int64_t time = time_of(event.seconds);
    if (event.kind == FlightEventKind::kPhase)
      begin(phase_open_, phases_, time, enum_name(static_cast<RunPhase>(event.what)), event.value);
    else if (event.kind == FlightEventKind::kHost)
      begin(host_open_, host_, time, enum_name(static_cast<HostState>(event.what)), event.value);
    else if (event.kind == FlightEventKind::kAction)
      events_.push_back({time, HangEvent::Type::kInstant, actions_,
                         fmt::format("{} {}", enum_name(static_cast<ComputeKind>(event.what)), event.value),
                         event.value});
    else if (event.kind == FlightEventKind::kTransfer && event.what < channels_.size())
      add_transfer(event.what, static_cast<uint32_t>(event.value), time);
  }

  void add_transfer(uint32_t index, uint32_t sequence, int64_t time) {
    const ChannelRecord& channel = record_.channels[index];
    const auto passed = [&](uint32_t count) { return static_cast<int32_t>(count - sequence) >= 0; };
    const char* const state = passed(channel.completed) ? "complete" : passed(channel.joined) ? "joined" : "enqueued";
    const bool open = !passed(channel.completed);
    events_.push_back({time, open ? HangEvent::Type::kBegin : HangEvent::Type::kInstant, channels_[index],
                       fmt::format("{} {}: {}", channel.name, sequence, state), sequence});
    num_open_[index] += open ? 1 : 0;
  }

  const RankRecord& record_;
  std::vector<HangEvent>& events_;
  const uint64_t process_;
  uint64_t phases_ = 0, host_ = 0, actions_ = 0;
  std::vector<uint64_t> channels_;
  std::vector<int> num_open_ = std::vector<int>(record_.channels.size(), 0);
  bool phase_open_ = false, host_open_ = false;
};

}  // namespace

Result<void> write_hang_trace(std::span<const RankRecord> records, const std::string& path) {
  auto writer = PerfettoWriter::create(path);
  if (!writer) return writer.error();
  std::vector<HangEvent> events;
  for (const RankRecord& record : records) RankTracks(record, writer.value(), events).fill();
  std::stable_sort(events.begin(), events.end(),
                   [](const HangEvent& a, const HangEvent& b) { return a.time < b.time; });
  for (const HangEvent& event : events) {
    const PerfettoWriter::Argument number{"number", event.number};
    if (event.type == HangEvent::Type::kBegin)
      writer.value().begin(event.track, event.time, event.name, {&number, 1});
    else if (event.type == HangEvent::Type::kEnd)
      writer.value().end(event.track, event.time);
    else
      writer.value().instant(event.track, event.time, event.name, {&number, 1});
  }
  return writer.value().commit();
}

}  // namespace tri
