#include "io/flight_recorder/record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "io/base/file.h"
#include "io/base/host.h"
#include "io/base/proc.h"
#include "io/flight_recorder/flight_recorder.h"

namespace tri {
namespace {

template <class T>
T relaxed(const std::atomic<T>& word) {
  return word.load(std::memory_order_relaxed);
}

template <size_t N>
std::string text(const char (&place)[N]) {
  return {place, ::strnlen(place, N)};
}

// Computes ages of times taken on the flight recorder's machine.
class Clock {
 public:
  Clock() : now_(FlightRecorder::now()) {}
  double age(int64_t time) const { return static_cast<double>(std::max<int64_t>(now_ - time, 0)) * 1e-9; }
  double age(const flight::Time& time) const { return age(relaxed(time)); }

 private:
  const int64_t now_;
};

// Calls `take` with the indices of the newest `wanted` of `written` entries of a ring of `size`, oldest first.
template <class Take>
void newest(uint32_t written, uint32_t size, uint32_t wanted, Take take) {
  const uint32_t count = std::min({written, size, wanted});
  for (uint32_t i = written - count; i != written; ++i) take(i % size);
}

void read_identity(const flight::Image& image, const Clock& clock, RankRecord& record) {
  record.world_rank = image.world_rank, record.world_size = image.world_size;
  if (image.version == flight::kVersionWithoutAxes) {
    record.grid = unnamed_grid(image.place[1], image.place[3], image.place[5]);
  } else {
    record.grid.axes.clear();
    for (uint32_t i = 0; i < std::min<uint32_t>(image.num_axes, flight::kMaxAxes); ++i)
      record.grid.axes.push_back({text(image.axes[i].name), image.axes[i].size});
  }
  for (GridAxis& axis : record.grid.axes) axis.size = std::max(axis.size, 1);
  record.host = text(image.host);
  record.attempt = text(image.attempt);
  record.job = text(image.job);
  record.gpu = text(image.gpu);
  record.run_dir = text(image.run_dir);
  record.process = image.process;
  record.process_namespace = image.process_namespace;
  record.process_start = image.process_start;
  record.created = image.created;
  record.uptime = clock.age(image.created);
  // Does not use the host's wall clock, which may have been set since the flight recorder was created.
  record.taken = static_cast<double>(image.created_realtime) * 1e-9 + record.uptime;
}

void read_progress(const flight::Image& image, const Clock& clock, RankRecord& record) {
  record.phase = static_cast<RunPhase>(relaxed(image.phase));
  record.host_state = static_cast<HostState>(relaxed(image.host_state));
  record.phase_seconds = clock.age(image.phase_since);
  record.host_seconds = clock.age(image.host_since);
  record.beat_seconds = clock.age(image.beat);
  record.step = relaxed(image.step), record.steps = relaxed(image.steps);
  record.progress = relaxed(image.progress);
  record.ended = relaxed(image.ended) != 0;
  record.step_seconds = static_cast<double>(relaxed(image.step_nanoseconds)) * 1e-9;
  record.connection = relaxed(image.connection);
  if (record.connection != 0) {
    record.connection_name = text(image.connection_name);
    record.connection_set = image.connection_set;
    const auto size = std::min<size_t>(relaxed(image.connection_size), std::size(image.connection_members));
    for (size_t i = 0; i < size; ++i) record.connection_members.push_back(relaxed(image.connection_members[i]));
  }
  newest(relaxed(image.num_connections), flight::kMaxConnections, flight::kMaxConnections,
         [&](uint32_t i) { record.connections_done.push_back(image.connections[i].id); });
}

void read_actions(const flight::Image& image, const flight::Action* actions, RankRecord& record) {
  record.actions_enqueued = relaxed(image.actions_enqueued);
  record.action_entered = relaxed(image.action_entered);
  record.action_running = relaxed(image.action_running);
  // A running action has been entered, whether or not its mark is visible.
  if (static_cast<int32_t>(record.action_running - record.action_entered) > 0)
    record.action_entered = record.action_running;
  if (record.action_entered == 0) return;
  const flight::Action& action = actions[record.action_entered % image.num_actions];
  if (action.number != record.action_entered) return;  // overwritten
  ActionRecord entered{.number = action.number,
                       .kind = static_cast<ComputeKind>(action.kind),
                       .chunk = action.chunk,
                       .microbatch = action.microbatch};
  for (int i = 0; i < std::min<int>(action.num_waits, flight::kMaxWaits); ++i)
    entered.waits.push_back({static_cast<int>(action.channels[i]), action.sequences[i]});
  record.action = std::move(entered);
}

void read_activities(const flight::Image& image, const Clock& clock, RankRecord& record) {
  const uint32_t channels = std::min<uint32_t>(relaxed(image.num_channels), flight::kMaxChannels);
  for (uint32_t i = 0; i < channels; ++i) {
    const flight::Channel& channel = image.channels[i];
    const auto kind = static_cast<ChannelKind>(channel.kind);
    const uint32_t joined = relaxed(channel.joined), completed = relaxed(channel.completed);
    // Only for copies to several peers does the time of sending differ from the times of joining and completing.
    const uint32_t sent = kind == ChannelKind::kCopies ? relaxed(channel.sent)
                          : kind == ChannelKind::kSend ? completed
                                                       : joined;
    record.channels.push_back(
        {.name = text(channel.name),
         .kind = kind,
         .members = channel.members,
         .index = channel.index,
         .enqueued = relaxed(channel.enqueued),
         .joined = joined,
         .sent = sent,
         .completed = completed,
         .whole = kind == ChannelKind::kCopies ? relaxed(channel.whole) : relaxed(channel.enqueued),
         .operation = static_cast<ChannelOperation>(relaxed(channel.operation)),
         .bytes = relaxed(channel.bytes)});
  }
  for (size_t i = 0; i < record.loaders.size(); ++i) {
    const flight::LoaderStatus& loader = image.loaders[i];
    record.loaders[i] = {.reader = relaxed(loader.reader),
                         .wanted = relaxed(loader.wanted),
                         .reader_state = static_cast<ReaderState>(relaxed(loader.reader_state)),
                         .published = relaxed(loader.published),
                         .seconds = clock.age(loader.since)};
  }
  const auto writer = [&](const flight::Writer& w) {
    return WriterRecord{.state = static_cast<WriterState>(relaxed(w.state)),
                        .progress = relaxed(w.progress),
                        .step = relaxed(w.step),
                        .seconds = clock.age(w.since)};
  };
  record.writer = writer(image.writer);
  if (const WriterRecord lines = writer(image.lines);
      lines.state != WriterState::kIdle &&
      (record.writer.state == WriterState::kIdle || record.writer.seconds < lines.seconds))
    record.writer = lines;
  if (image.failure.state.load(std::memory_order_acquire) != 0)
    record.failure = {.code = static_cast<int>(image.failure.code),
                      .consequence = image.failure.consequence != 0,
                      .realtime = image.failure.realtime,
                      .text = text(image.failure.text)};
}

void read_history(const flight::Image& image, const Clock& clock, int max_events, RankRecord& record) {
  for (uint32_t i = 0; i < std::min<uint32_t>(relaxed(image.num_streams), flight::kMaxStreams); ++i)
    record.streams.push_back(
        {text(image.streams[i].name), static_cast<StreamActivity>(relaxed(image.streams[i].state))});
  for (uint32_t i = 0; i < std::min<uint32_t>(relaxed(image.num_stacks), flight::kThreads); ++i) {
    const flight::Stack& stack = image.stacks[i];
    const uint32_t depth = std::min<uint32_t>(stack.depth.load(std::memory_order_acquire), flight::kFrames);
    if (depth > 0) record.stacks.push_back({stack.thread, text(stack.name), {stack.frames, stack.frames + depth}, {}});
  }
  newest(relaxed(image.num_log_lines), flight::kLogLines, flight::kLogLines, [&](uint32_t i) {
    record.log.push_back({clock.age(image.log[i].time), text(image.log[i].text)});
  });
  record.last_event_seconds = record.uptime;
  newest(relaxed(image.num_events), flight::kEvents, 1,
         [&](uint32_t i) { record.last_event_seconds = clock.age(image.events[i].time); });
  newest(relaxed(image.num_events), flight::kEvents, static_cast<uint32_t>(std::max(max_events, 0)), [&](uint32_t i) {
    const flight::Event& event = image.events[i];
    record.events.push_back({clock.age(event.time), static_cast<FlightEventKind>(event.kind), event.what, event.value});
  });
}

// Accepts files of this user; root may read those of all users.
bool may_be_record(const struct stat& info) {
  return S_ISREG(info.st_mode) && (info.st_uid == ::geteuid() || ::geteuid() == 0);
}

ProcessState state_of_process(int process, int64_t name_space, int64_t start) {
  if (name_space == 0 || pid_namespace() != name_space) return ProcessState::kUnknown;
  const auto stat = process_stat(process_folder(process));
  if (!stat || stat->start != start) return ProcessState::kGone;  // another process may have the same number
  return process_state_from(stat->state);
}

}  // namespace

std::string to_string_place(const RankRecord& record) {
  return fmt::format("rank {} [{}] on {}{}", record.world_rank, record.grid.place(record.world_rank), record.host,
                     record.gpu.empty() ? "" : fmt::format(" (GPU {})", record.gpu));
}

Result<RankRecord> read_flight_record(const std::string& path, int max_events) {
  // Any user may put files into /dev/shm: a FIFO must not block this process, and other users' records are ignored.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return system_error(errno, "{}", path);
  const auto no_record = [&](const char* why) { return Error{fmt::format("{}: {}", path, why), ExitCode::kFile}; };
  if (!may_be_record(info)) return no_record("the file does not belong to this user");
  const int64_t size = info.st_size;
  if (size < static_cast<int64_t>(flight::kActionsOffset6))
    return no_record("the file is too short for a flight record");
  std::vector<char> bytes(std::max(static_cast<size_t>(size), sizeof(flight::Image)) + alignof(flight::Image));
  void* place = bytes.data();
  size_t space = bytes.size();
  char* const aligned = static_cast<char*>(std::align(alignof(flight::Image), sizeof(flight::Image), place, space));
  if (const auto read = read_at(file.get(), path, aligned, size, 0); !read) return read.error();
  const auto& image = *reinterpret_cast<const flight::Image*>(aligned);
  if (image.magic != flight::kMagic) return no_record("the file is not a flight record");
  if (image.version != flight::kVersion && image.version != flight::kVersionWithoutAxes)
    return no_record("the flight record was written by another version of trireme; use that of the run");
  const size_t actions =
      image.version == flight::kVersionWithoutAxes ? flight::kActionsOffset6 : flight::kActionsOffset;
  if (image.num_actions == 0 || actions + image.num_actions * sizeof(flight::Action) > static_cast<size_t>(size))
    return no_record("the flight record has a damaged header");
  const Clock clock;
  RankRecord record;
  read_identity(image, clock, record);
  read_progress(image, clock, record);
  read_actions(image, reinterpret_cast<const flight::Action*>(aligned + actions), record);
  read_activities(image, clock, record);
  read_history(image, clock, max_events, record);
  return record;
}

std::vector<std::string> list_flight_records() {
  const std::string folder = flight_record_folder();
  std::vector<std::string> paths;
  const auto names = list_folder(folder);
  if (!names) return paths;
  for (const std::string& name : names.value()) {
    struct stat info {};
    const std::string path = folder + "/" + name;
    if (name.starts_with(kFlightRecordPrefix) && !name.ends_with(".tmp") && ::lstat(path.c_str(), &info) == 0 &&
        may_be_record(info))
      paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

ProcessState process_state_of(const RankRecord& record) {
  if (record.host != host_name()) return ProcessState::kUnknown;
  return state_of_process(record.process, record.process_namespace, record.process_start);
}

ProcessState state_of_recorded_process(const std::string& path) {
  constexpr size_t kHead = offsetof(flight::Image, created_realtime);
  const auto image = std::make_unique<flight::Image>();
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0 || !may_be_record(info)) return ProcessState::kUnknown;
  if (info.st_size < static_cast<off_t>(kHead) || !read_at(file.get(), path, image.get(), kHead, 0))
    return ProcessState::kUnknown;
  if (image->magic != flight::kMagic) return ProcessState::kUnknown;
  return state_of_process(image->process, image->process_namespace, image->process_start);
}

ProcessState process_state_from(char letter) {
  switch (letter) {
    case 'Z':
    case 'X':
      return ProcessState::kGone;
    case 'T':
      return ProcessState::kStopped;
    case 't':
      return ProcessState::kTraced;
    default:
      return ProcessState::kRuns;
  }
}

}  // namespace tri
