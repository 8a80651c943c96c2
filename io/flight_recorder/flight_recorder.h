// The flight recorder of this rank, as its writer sees it: image.h says what is in it.
//
// Threads: the thread that trains, which made the flight recorder, calls everything but what says otherwise. Every call
// is a few stores; none waits, fails or allocates once the flight recorder is made.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/base/rank_grid.h"
#include "io/flight_recorder/image.h"

namespace tri {

// Who writes a flight recorder.
struct RecorderIdentity {
  int world_rank = 0, world_size = 1;
  RankGrid grid = unnamed_grid(1, 1, 1);  // of the job: at most kMaxAxes axes, with names of at most 11 characters
  std::string attempt;                    // of the start of the job, the same on all ranks
  std::string job;                        // the scheduler's name of the job; may be empty
  std::string run_dir;                    // absolute
  std::string gpu;                        // its PCI id, "0000:18:00.0"; "" for a CPU
  int max_actions = 0;                    // compute actions that may be on their way at once
};

// Where flight recorders lie: TRIREME_BLACK_BOXES, else /dev/shm.
std::string flight_record_folder();
// "trireme.<attempt>.<rank>": the names of flight recorders, and nothing else, begin so.
inline constexpr std::string_view kFlightRecordPrefix = "trireme.recorder.";

class FlightRecorder {
 public:
  // A new file in flight_record_folder(), readable by its owner alone. Error: it can't be had; a run goes on without.
  static Result<std::unique_ptr<FlightRecorder>> create(const RecorderIdentity& identity);
  // The file stays, unless the run has left this rank in good order.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  const std::string& path() const { return path_; }
  flight::Image& image() { return *image_; }
  size_t bytes() const { return bytes_; }  // of the file: what a device maps to write the counters

  void set_place(const RecorderIdentity& identity);  // once the mesh and the device are known
  RunPhase enter(RunPhase phase);                    // returns the phase before
  HostState enter(HostState state);                  // returns the state before
  void begin_step(int64_t step, int64_t steps);
  void end_step(int64_t nanoseconds);
  // Any thread: what this rank is about goes on, however long it takes.
  void tick() { image_->progress.fetch_add(1, std::memory_order_relaxed); }
  void end_well() { image_->ended = 1; }

  // A channel of this rank, for as long as the flight recorder lives. Null: there are kMaxChannels already.
  flight::Channel* add_channel(std::string_view name, ChannelKind kind, const RankSet& members, int index);
  uint32_t index_of(const flight::Channel& channel) const { return static_cast<uint32_t>(&channel - image_->channels); }
  // The host has enqueued the channel's next operation; returns its number. Any one thread a channel.
  uint32_t enqueue(flight::Channel& channel, ChannelOperation operation, int64_t bytes);

  // The next compute action; returns its number, for action_entered and action_running, which streams set.
  uint32_t enqueue_action(ComputeKind kind, int chunk, int microbatch);
  // The action enqueued last cannot begin before this operation is complete.
  void action_awaits(const flight::Channel& channel, uint32_t sequence);

  // This rank meets `members` in `what`, until the end; 0 members: nothing. One at a time: ConnectionScope.
  void begin_connection(std::string_view what, const std::vector<int>& members);
  void end_connection();

  // Any thread.
  void event(FlightEventKind kind, uint32_t what, int64_t value);
  void enter(flight::LoaderStatus& loader, ReaderState state);
  void enter(WriterState state, int64_t step);
  void writer_goes_on();
  // Whether lines wait for storage, and how many batches of them were written; `since`: when either last changed.
  void lines_stand(bool pending, uint32_t written, int64_t since);
  void log_line(std::string_view text);
  void failure(uint32_t code, bool consequence, std::string_view text);  // the first counts

  static int64_t now();  // nanoseconds, CLOCK_MONOTONIC

 private:
  FlightRecorder() = default;
  flight::Action* actions() {
    return reinterpret_cast<flight::Action*>(reinterpret_cast<char*>(image_) + flight::kActionsOffset);
  }

  std::string path_;
  flight::Image* image_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<bool> failed_{false};
};

// The flight recorder of this process; null: it keeps none.
FlightRecorder* flight_recorder();

// For as long as it lives, `recorder` is the process's, and the thread that makes this is the one that trains.
class ProcessFlightRecorder {
 public:
  explicit ProcessFlightRecorder(FlightRecorder* recorder);
  ~ProcessFlightRecorder();
  ProcessFlightRecorder(const ProcessFlightRecorder&) = delete;
  ProcessFlightRecorder& operator=(const ProcessFlightRecorder&) = delete;
};

// For the time of a wait of the thread that trains. On other threads, and without a flight recorder, nothing.
class HostScope {
 public:
  explicit HostScope(HostState state);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  FlightRecorder* recorder_;
  HostState before_{};
};

// The same of a phase of the run.
class PhaseScope {
 public:
  explicit PhaseScope(RunPhase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  FlightRecorder* recorder_;
  RunPhase before_{};
};

// This rank meets `members` in `what` for as long as this lives; without a flight recorder nothing. On the thread that
// trains.
class ConnectionScope {
 public:
  ConnectionScope(std::string_view what, const std::vector<int>& members);
  ~ConnectionScope();
  ConnectionScope(const ConnectionScope&) = delete;
  ConnectionScope& operator=(const ConnectionScope&) = delete;

 private:
  FlightRecorder* recorder_;
};

// What this rank is about goes on; without a flight recorder nothing. Any thread.
inline void tick_flight_recorder() {
  if (FlightRecorder* recorder = flight_recorder()) recorder->tick();
}

// World ranks as a progression; {} where they are none.
RankSet rank_set(const std::vector<int>& world_ranks);
// What is connected, by name and members: equal on all of them.
uint64_t connection_id(std::string_view what, const std::vector<int>& members);

}  // namespace tri
