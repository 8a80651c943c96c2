#include "io/flight_recorder/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/proc.h"

namespace tri {
namespace {

int64_t nanoseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// For everything that is recorded continuously: costs a tenth of the exact clock.
int64_t tick_of_kernel() { return nanoseconds(CLOCK_MONOTONIC_COARSE); }

// Copies as much of `text` as fits, with a terminating zero.
template <size_t N>
void put(char (&place)[N], std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(place, text.data(), length);
  place[length] = '\0';
}

// Uses single stores, so that concurrent readers see each word whole.
template <class T, class V>
void set(std::atomic<T>& word, V value) {
  word.store(static_cast<T>(value), std::memory_order_relaxed);
}
template <class T>
T get(const std::atomic<T>& word) {
  return word.load(std::memory_order_relaxed);
}

}  // namespace

std::string flight_record_folder() {
  const char* folder = std::getenv("TRIREME_BLACK_BOXES");
  return folder != nullptr && *folder != '\0' ? folder : "/dev/shm";
}

int64_t FlightRecorder::now() { return nanoseconds(CLOCK_MONOTONIC); }

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::create(const RecorderIdentity& identity) {
  std::unique_ptr<FlightRecorder> recorder(new FlightRecorder);
  recorder->path_ =
      fmt::format("{}/{}{}.{}", flight_record_folder(), kFlightRecordPrefix, identity.attempt, identity.world_rank);
  const std::string unnamed = recorder->path_ + ".tmp";  // until it contains the writer's identity
  if (constexpr size_t kMost = sizeof(flight::Image::run_dir) - 1; identity.run_dir.size() > kMost)
    return Error{fmt::format("run.dir has {} bytes, but at most {} are supported: {}", identity.run_dir.size(), kMost,
                             identity.run_dir),
                 ExitCode::kFile};
  const auto refused = [&](const char* what, int problem) {
    ::unlink(unnamed.c_str());
    return Error{fmt::format("{}: {}: {}", unnamed, what, std::strerror(problem)), ExitCode::kFile};
  };
  const auto num_actions = std::bit_ceil(static_cast<uint32_t>(std::max(identity.max_actions, 64)));
  recorder->bytes_ = flight::kActionsOffset + num_actions * sizeof(flight::Action);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  recorder->bytes_ = (recorder->bytes_ + page - 1) / page * page;
  const Descriptor file(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) return refused("open", errno);
  // Reserves all memory now: a store into a page without memory behind it would end the process.
  if (const int problem = ::posix_fallocate(file.get(), 0, static_cast<off_t>(recorder->bytes_)); problem != 0)
    return refused("reserving its memory", problem);
  void* memory = ::mmap(nullptr, recorder->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return refused("mmap", errno);
  recorder->image_ = static_cast<flight::Image*>(memory);
  flight::Image& image = *recorder->image_;
  image.magic = flight::kMagic;
  image.version = flight::kVersion;
  image.bytes = static_cast<uint32_t>(recorder->bytes_);
  image.num_actions = num_actions;
  image.process = ::getpid();
  image.process_namespace = pid_namespace();
  image.process_start = process_stat("/proc/self").value_or(ProcessStat{}).start;
  image.created = now();
  image.created_realtime = static_cast<int64_t>(process_wall_seconds() * 1e9);
  put(image.host, host_name());
  put(image.attempt, identity.attempt);
  put(image.job, identity.job);
  put(image.run_dir, identity.run_dir);
  recorder->set_place(identity);
  set(image.phase_since, image.created);
  set(image.host_since, image.created);
  set(image.beat, image.created);
  for (flight::LoaderStatus& loader : image.loaders) set(loader.reader, -1);
  if (::rename(unnamed.c_str(), recorder->path_.c_str()) != 0) return refused("rename", errno);
  return recorder;
}

FlightRecorder::~FlightRecorder() {
  if (image_ == nullptr) return;
  const bool well = get(image_->ended) != 0;
  ::munmap(image_, bytes_);
  if (well) ::unlink(path_.c_str());
}

void FlightRecorder::set_place(const RecorderIdentity& identity) {
  flight::Image& image = *image_;
  image.world_rank = identity.world_rank, image.world_size = identity.world_size;
  image.num_axes = 0;
  for (const GridAxis& axis : identity.grid.axes) {
    if (image.num_axes == flight::kMaxAxes) break;
    flight::GridSize& row = image.axes[image.num_axes++];
    put(row.name, axis.name);
    row.size = axis.size;
  }
  put(image.gpu, identity.gpu);
}

RunPhase FlightRecorder::enter(RunPhase phase) {
  const auto before = static_cast<RunPhase>(get(image_->phase));
  set(image_->phase, static_cast<uint32_t>(phase));
  set(image_->phase_since, tick_of_kernel());
  tick();
  event(FlightEventKind::kPhase, static_cast<uint32_t>(phase), get(image_->step));
  return before;
}

HostState FlightRecorder::enter(HostState state) {
  const auto before = static_cast<HostState>(get(image_->host_state));
  set(image_->host_state, static_cast<uint32_t>(state));
  set(image_->host_since, tick_of_kernel());
  event(FlightEventKind::kHost, static_cast<uint32_t>(state), get(image_->step));
  return before;
}

void FlightRecorder::begin_step(int64_t step, int64_t steps) {
  set(image_->step, step);
  set(image_->steps, steps);
  enter(RunPhase::kStep);
}

void FlightRecorder::end_step(int64_t nanoseconds_of_step) {
  set(image_->step_nanoseconds, nanoseconds_of_step);
  tick();
}

flight::Channel* FlightRecorder::add_channel(std::string_view name, ChannelKind kind, const RankSet& members,
                                             int index) {
  const uint32_t number = get(image_->num_channels);
  if (number == flight::kMaxChannels) {
    log_warn("{} channels are recorded already: a hang in \"{}\" may be attributed to another place", number, name);
    return nullptr;
  }
  flight::Channel& channel = image_->channels[number];
  put(channel.name, name);
  channel.kind = static_cast<uint32_t>(kind);
  channel.members = members;
  channel.index = index;
  image_->num_channels.store(number + 1, std::memory_order_release);
  return &channel;
}

uint32_t FlightRecorder::enqueue(flight::Channel& channel, ChannelOperation operation, int64_t bytes) {
  const uint32_t number = get(channel.enqueued) + 1;
  set(channel.operation, static_cast<uint32_t>(operation));
  set(channel.bytes, get(channel.bytes) + bytes);
  set(channel.enqueued, number);
  event(FlightEventKind::kTransfer, index_of(channel), number);
  return number;
}

uint32_t FlightRecorder::enqueue_action(ComputeKind kind, int chunk, int microbatch) {
  const uint32_t number = get(image_->actions_enqueued) + 1;
  flight::Action& action = actions()[number % image_->num_actions];
  action.number = number;
  action.kind = static_cast<uint8_t>(kind);
  action.num_waits = 0;
  action.chunk = static_cast<uint16_t>(chunk);
  action.microbatch = microbatch;
  image_->actions_enqueued.store(number, std::memory_order_release);
  event(FlightEventKind::kAction, static_cast<uint32_t>(kind), microbatch);
  return number;
}

void FlightRecorder::action_awaits(const flight::Channel& channel, uint32_t sequence) {
  flight::Action& action = actions()[get(image_->actions_enqueued) % image_->num_actions];
  if (action.num_waits == flight::kMaxWaits) return;
  action.channels[action.num_waits] = index_of(channel);
  action.sequences[action.num_waits] = sequence;
  ++action.num_waits;
}

void FlightRecorder::begin_connection(std::string_view what, const std::vector<int>& members) {
  end_connection();
  if (members.empty()) return;
  put(image_->connection_name, what);
  const RankSet progression = rank_set(members);
  const bool fits = members.size() <= std::size(image_->connection_members);
  image_->connection_set = progression;
  set(image_->connection_size, progression.size > 0 || !fits ? 0 : members.size());
  for (size_t i = 0; i < get(image_->connection_size); ++i) set(image_->connection_members[i], members[i]);
  image_->connection.store(connection_id(what, members), std::memory_order_release);
  enter(HostState::kConnects);
  tick();
}

void FlightRecorder::end_connection() {
  const uint64_t id = get(image_->connection);
  if (id == 0) return;
  const uint32_t number = get(image_->num_connections);
  flight::Connection& place = image_->connections[number % flight::kMaxConnections];
  place.id = id;
  set(place.done, 1);
  image_->num_connections.store(number + 1, std::memory_order_release);
  set(image_->connection, 0);
  enter(HostState::kWorks);
  tick();
}

void FlightRecorder::event(FlightEventKind kind, uint32_t what, int64_t value) {
  const uint32_t number = image_->num_events.fetch_add(1, std::memory_order_relaxed);
  image_->events[number % flight::kEvents] = {tick_of_kernel(), static_cast<uint32_t>(kind), what, value};
}

void FlightRecorder::enter(flight::LoaderStatus& loader, ReaderState state) {
  set(loader.reader_state, static_cast<uint32_t>(state));
  set(loader.since, tick_of_kernel());
  event(FlightEventKind::kReader, static_cast<uint32_t>(state), get(loader.published));
}

void FlightRecorder::enter(WriterState state, int64_t step) {
  set(image_->writer.step, step);
  set(image_->writer.state, static_cast<uint32_t>(state));
  writer_goes_on();
  event(FlightEventKind::kWriter, static_cast<uint32_t>(state), step);
}

void FlightRecorder::writer_goes_on() {
  set(image_->writer.since, tick_of_kernel());
  image_->writer.progress.fetch_add(1, std::memory_order_relaxed);
}

void FlightRecorder::lines_stand(bool pending, uint32_t written, int64_t since) {
  set(image_->lines.state, static_cast<uint32_t>(pending ? WriterState::kAppends : WriterState::kIdle));
  set(image_->lines.progress, written);
  set(image_->lines.since, since);
}

void FlightRecorder::log_line(std::string_view text) {
  const uint32_t number = image_->num_log_lines.fetch_add(1, std::memory_order_relaxed);
  flight::LogLine& line = image_->log[number % flight::kLogLines];
  line.time = tick_of_kernel();
  put(line.text, text);
}

void FlightRecorder::failure(uint32_t code, bool consequence, std::string_view text) {
  if (failed_.exchange(true)) return;
  flight::Failure& failure = image_->failure;
  failure.code = code;
  failure.consequence = consequence ? 1 : 0;
  failure.realtime = image_->created_realtime + now() - image_->created;  // the wall clock may have been set
  put(failure.text, text);
  failure.state.store(1, std::memory_order_release);
}

namespace {
std::atomic<FlightRecorder*> g_recorder{nullptr};
thread_local bool t_trains = false;
}  // namespace

FlightRecorder* flight_recorder() { return g_recorder.load(std::memory_order_relaxed); }

ProcessFlightRecorder::ProcessFlightRecorder(FlightRecorder* recorder) {
  g_recorder = recorder;
  t_trains = true;
  log_keep_lines([](const std::string& line) {
    if (FlightRecorder* const own = flight_recorder()) own->log_line(line);
  });
}

ProcessFlightRecorder::~ProcessFlightRecorder() {
  log_keep_lines(nullptr);
  t_trains = false;
  g_recorder = nullptr;
}

HostScope::HostScope(HostState state) : recorder_(t_trains ? flight_recorder() : nullptr) {
  if (recorder_ != nullptr) before_ = recorder_->enter(state);
}

HostScope::~HostScope() {
  if (recorder_ != nullptr) recorder_->enter(before_);
}

PhaseScope::PhaseScope(RunPhase phase) : recorder_(t_trains ? flight_recorder() : nullptr) {
  if (recorder_ != nullptr) before_ = recorder_->enter(phase);
}

PhaseScope::~PhaseScope() {
  if (recorder_ != nullptr) recorder_->enter(before_);
}

ConnectionScope::ConnectionScope(std::string_view what, const std::vector<int>& members)
    : recorder_(t_trains ? flight_recorder() : nullptr) {
  if (recorder_ != nullptr) recorder_->begin_connection(what, members);
}

ConnectionScope::~ConnectionScope() {
  if (recorder_ != nullptr) recorder_->end_connection();
}

RankSet rank_set(const std::vector<int>& world_ranks) {
  if (world_ranks.empty()) return {};
  RankSet set{world_ranks[0], world_ranks.size() > 1 ? world_ranks[1] - world_ranks[0] : 1,
              static_cast<int32_t>(world_ranks.size())};
  for (int i = 0; i < set.size; ++i)
    if (set.rank(i) != world_ranks[static_cast<size_t>(i)]) return {};
  return set;
}

uint64_t connection_id(std::string_view what, const std::vector<int>& members) {
  std::string bytes(what);
  bytes.append(reinterpret_cast<const char*>(members.data()), members.size() * sizeof(int));
  return xxh3_64(bytes) | 1;
}

}  // namespace tri
