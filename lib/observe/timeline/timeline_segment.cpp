#include "lib/observe/timeline/timeline_segment.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/host/messages.h"

namespace tri {
namespace {

constexpr std::string_view kMagic = "TRITIME2", kOldMagic = "TRITIME1";  // of equal length

uint16_t index_of(std::vector<std::string>& names, std::string_view name) {
  const auto index = std::find(names.begin(), names.end(), name) - names.begin();
  if (index == static_cast<std::ptrdiff_t>(names.size())) names.emplace_back(name);
  return static_cast<uint16_t>(index);
}

std::vector<TimelineChannel> channels_of(const flight::Image& image) {
  std::vector<TimelineChannel> channels;
  const uint32_t count = image.num_channels.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const flight::Channel& channel = image.channels[i];
    channels.push_back({channel.name, static_cast<ChannelKind>(channel.kind), channel.members, channel.index});
  }
  return channels;
}

// Combines the markers of each operation.
std::vector<TimelineTransfer> transfers_of(const SpanRecorder::Recording& recording, size_t num_channels) {
  std::map<std::pair<uint32_t, uint32_t>, TimelineTransfer> by_number;  // channel, sequence
  for (const SpanRecorder::Transfer& mark : recording.transfers) {
    if (mark.channel >= num_channels) continue;
    TimelineTransfer& transfer = by_number[{mark.channel, mark.sequence}];
    if (mark.mark == TransferMark::kJoined) {
      transfer.joined = mark.time;
      transfer.join_stream = mark.stream;
      transfer.step = static_cast<int32_t>(mark.step);
      transfer.operation = static_cast<ChannelOperation>(mark.operation);
    } else if (mark.mark == TransferMark::kSent) {
      transfer.sent = mark.time;
    } else {
      transfer.completed = mark.time;
      transfer.arrive_stream = mark.stream;
    }
  }
  std::vector<TimelineTransfer> transfers;
  for (auto& [number, transfer] : by_number) {
    transfer.channel = static_cast<uint16_t>(number.first);
    transfer.sequence = number.second;
    if (transfer.joined != 0 && transfer.completed != 0) transfers.push_back(transfer);
  }
  return transfers;
}

// Returns, by [stream], the times in which only a transfer runs there, in order.
std::vector<std::vector<std::pair<int64_t, int64_t>>> busy_times(const TimelineSegment& segment, size_t num_streams) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> busy(num_streams);
  for (const TimelineTransfer& transfer : segment.transfers)
    if (transfer.join_stream == transfer.arrive_stream)
      busy[transfer.join_stream].emplace_back(transfer.joined, transfer.completed);
  for (auto& times : busy) std::sort(times.begin(), times.end());
  return busy;
}

bool is_inside(const SpanRecorder::Span& span, const std::vector<std::pair<int64_t, int64_t>>& busy) {
  auto after = std::upper_bound(busy.begin(), busy.end(), std::pair(span.begin, INT64_MAX));
  return after != busy.begin() && span.end <= (--after)->second;
}

}  // namespace

template <class Archive>
void fields(Archive& archive, TimelineChannel& c) {
  archive(c.name, c.kind, c.members, c.index);
}

template <class Archive>
void fields_after_place(Archive& archive, TimelineSegment& p) {
  archive(p.host, p.gpu, p.attempt, p.steps, p.clock);
  archive(p.device_error, p.lost_marks, p.streams, p.names, p.channels, p.spans, p.transfers);
}

template <class Archive>
void fields(Archive& archive, TimelineSegment& p) {
  archive(p.world_rank, p.world_size, p.place);
  fields_after_place(archive, p);
}

template <class Archive>
void fields(Archive& archive, AxisPlace& p) {
  archive(p.axis, p.rank, p.size);
}

// The first version of the format had three axes without names and sizes.
struct SegmentWithThreeAxes {
  TimelineSegment segment;
};
template <class Archive>
void fields(Archive& archive, SegmentWithThreeAxes& old) {
  TimelineSegment& p = old.segment;
  p.place = {{"pp"}, {"dp"}, {"tp"}};
  archive(p.world_rank, p.world_size, p.place[0].rank, p.place[1].rank, p.place[2].rank);
  fields_after_place(archive, p);
}

std::vector<AxisPlace> place_on_axes(const RankGrid& grid, int world_rank) {
  std::vector<AxisPlace> place;
  for (auto axis = grid.axes.rbegin(); axis != grid.axes.rend(); ++axis)
    place.push_back({axis->name, grid.rank_on(axis->name, world_rank), axis->size});
  return place;
}

int TimelineSegment::rank_on(std::string_view axis) const {
  const auto at = std::ranges::find(place, axis, &AxisPlace::axis);
  return at == place.end() ? 0 : at->rank;
}

std::string TimelineSegment::place_text() const {
  std::string text;
  for (const AxisPlace& on : place) text += fmt::format("{}{}{}", text.empty() ? "" : " ", on.axis, on.rank);
  return text;
}

void add_recording(const SpanRecorder::Recording& recording, const std::vector<HostSpan>& host,
                   TimelineSegment& segment) {
  constexpr int64_t kShortestWait = 2000;  // a shorter wait is not worth showing
  constexpr uint16_t kCompute = 0;         // waits of transfer streams for compute or for buffers are not losses
  segment.streams = recording.streams;
  segment.device_error = recording.clock_error;
  segment.lost_marks = recording.lost_marks;
  if (const FlightRecorder* const recorder = flight_recorder())
    segment.channels = channels_of(const_cast<FlightRecorder*>(recorder)->image());
  segment.transfers = transfers_of(recording, segment.channels.size());
  const auto busy = busy_times(segment, recording.streams.size());
  for (const SpanRecorder::Span& span : recording.spans) {
    if (span.kind == SpanKind::kOperation && is_inside(span, busy[span.stream])) continue;
    if (span.kind == SpanKind::kWait &&
        (span.stream != kCompute || span.end - span.begin < kShortestWait || span.name == std::string_view("compute")))
      continue;
    segment.spans.push_back({.begin = span.begin,
                             .end = span.end,
                             .step = static_cast<int32_t>(span.step),
                             .stream = span.stream,
                             .name = index_of(segment.names, span.name),
                             .microbatch = span.a,
                             .chunk = static_cast<uint16_t>(span.b),
                             .kind = span.kind});
  }
  const auto host_stream = static_cast<uint16_t>(segment.streams.size());
  segment.streams.emplace_back("host");
  for (const HostSpan& span : host)
    segment.spans.push_back({.begin = span.begin,
                             .end = span.end,
                             .step = static_cast<int32_t>(span.step),
                             .stream = host_stream,
                             .name = index_of(segment.names, span.name)});
}

std::string timeline_folder(const std::string& run_dir, const StepRange& steps) {
  return fmt::format("{}/trace/steps_{:08d}_{:08d}", run_dir, steps.first, steps.last);
}

std::string segment_path(const std::string& folder, int world_rank) {
  return fmt::format("{}/rank_{:05d}.piece", folder, world_rank);
}

Result<void> write_segment(const std::string& folder, const TimelineSegment& segment) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) return file_error("{}: cannot create the folder: {}", folder, problem.message());
  const std::string bytes = to_bytes(segment), checksum = hex64(xxh3_64(bytes));
  auto file = AtomicFile::create(segment_path(folder, segment.world_rank));
  if (!file) return file.error();
  for (const std::string_view part : {kMagic, std::string_view(checksum), std::string_view(bytes)})
    file.value().write(part.data(), part.size());
  return file.value().publish();
}

Result<TimelineSegment> read_segment(const std::string& path) {
  constexpr size_t kChecksum = 16;
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  const std::string_view text = file.value().text();
  const bool is_old = text.starts_with(kOldMagic);
  if (!(is_old || text.starts_with(kMagic)) || text.size() < kMagic.size() + kChecksum)
    return file_error(
        "{}: not a segment of a timeline, or one that another version of trireme wrote; record the steps again", path);
  const std::string_view bytes = text.substr(kMagic.size() + kChecksum);
  if (parse_hex64(text.substr(kMagic.size(), kChecksum)) != xxh3_64(bytes))
    return file_error("{}: damaged, since its checksum differs", path);
  try {
    return is_old ? from_bytes<SegmentWithThreeAxes>(bytes).segment : from_bytes<TimelineSegment>(bytes);
  } catch (const Fatal& malformed) {
    return file_error("{}: {}", path, malformed.what());
  }
}

}  // namespace tri
