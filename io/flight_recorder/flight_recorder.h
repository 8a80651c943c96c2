// The writer's side of this rank's flight recorder; image.h describes its contents.
//
// Threads: the training thread, which creates the flight recorder, makes all calls unless noted. Every call is a few
// stores; none waits, fails or allocates once the flight recorder exists.
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

// The identity of a flight recorder's writer.
struct RecorderIdentity {
  int world_rank = 0, world_size = 1;
  RankGrid grid = unnamed_grid(1, 1, 1);  // of the job: at most kMaxAxes axes, with names of at most 11 characters
  std::string attempt;                    // name of this start of the job, the same on all ranks
  std::string job;                        // the scheduler's name of the job; may be empty
  std::string run_dir;                    // absolute
  std::string gpu;                        // its PCI id, "0000:18:00.0"; "" for a CPU
  int max_actions = 0;                    // the most compute actions in flight at once
};

// Returns the folder of flight recorders: TRIREME_BLACK_BOXES, else /dev/shm.
std::string flight_record_folder();
// Names of flight recorders, and no others, begin with this: "trireme.recorder.<attempt>.<rank>".
inline constexpr std::string_view kFlightRecordPrefix = "trireme.recorder.";

class FlightRecorder {
 public:
  // Creates a file in flight_record_folder(), readable only by its owner. If that fails, a run continues without one.
  static Result<std::unique_ptr<FlightRecorder>> create(const RecorderIdentity& identity);
  // Keeps the file, unless end_well() was called.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  const std::string& path() const { return path_; }
  flight::Image& image() { return *image_; }
  size_t bytes() const { return bytes_; }  // of the file, which a device maps to write the counters

  void set_place(const RecorderIdentity& identity);  // once the mesh and the device are known
  RunPhase enter(RunPhase phase);                    // returns the previous phase
  HostState enter(HostState state);                  // returns the previous state
  void begin_step(int64_t step, int64_t steps);
  void end_step(int64_t nanoseconds);
  // Notes progress of this rank's phase. Any thread may call it.
  void tick() { image_->progress.fetch_add(1, std::memory_order_relaxed); }
  void end_well() { image_->ended = 1; }

  // Returns a new channel of this rank, valid as long as the flight recorder; null if there are kMaxChannels already.
  flight::Channel* add_channel(std::string_view name, ChannelKind kind, const RankSet& members, int index);
  uint32_t index_of(const flight::Channel& channel) const { return static_cast<uint32_t>(&channel - image_->channels); }
  // Notes that the host has enqueued the channel's next operation; returns its number. One thread per channel.
  uint32_t enqueue(flight::Channel& channel, ChannelOperation operation, int64_t bytes);

  // Notes the next compute action; returns its number, for action_entered and action_running, which streams set.
  uint32_t enqueue_action(ComputeKind kind, int chunk, int microbatch);
  // Notes that the action enqueued last cannot begin before this operation is complete.
  void action_awaits(const flight::Channel& channel, uint32_t sequence);

  // Notes that this rank is connecting to `members` in `what`; without members, has no effect. One at a time:
  // ConnectionScope.
  void begin_connection(std::string_view what, const std::vector<int>& members);
  void end_connection();

  // Any thread may call these:
  void event(FlightEventKind kind, uint32_t what, int64_t value);
  void enter(flight::LoaderStatus& loader, ReaderState state);
  void enter(WriterState state, int64_t step);
  void writer_goes_on();
  // Whether lines wait for storage, and how many batches were written; `since`: when either last changed.
  void lines_stand(bool pending, uint32_t written, int64_t since);
  void log_line(std::string_view text);
  void failure(uint32_t code, bool consequence, std::string_view text);  // only the first call has an effect

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

// Returns the flight recorder of this process; null: it has none.
FlightRecorder* flight_recorder();

// Makes `recorder` the process's flight recorder while it lives, and the calling thread the training thread.
class ProcessFlightRecorder {
 public:
  explicit ProcessFlightRecorder(FlightRecorder* recorder);
  ~ProcessFlightRecorder();
  ProcessFlightRecorder(const ProcessFlightRecorder&) = delete;
  ProcessFlightRecorder& operator=(const ProcessFlightRecorder&) = delete;
};

// Marks a wait of the training thread. Has no effect on other threads, or without a flight recorder.
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

// The same for a phase of the run.
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

// Marks this rank as connecting to `members` in `what`. Main thread only. Has no effect without a flight recorder.
class ConnectionScope {
 public:
  ConnectionScope(std::string_view what, const std::vector<int>& members);
  ~ConnectionScope();
  ConnectionScope(const ConnectionScope&) = delete;
  ConnectionScope& operator=(const ConnectionScope&) = delete;

 private:
  FlightRecorder* recorder_;
};

// Notes progress of this rank's phase. Has no effect without a flight recorder. Any thread may call it.
inline void tick_flight_recorder() {
  if (FlightRecorder* recorder = flight_recorder()) recorder->tick();
}

// Returns the world ranks as a progression, or {} if they are not one.
RankSet rank_set(const std::vector<int>& world_ranks);
// Returns a hash of a connection's name and members, equal on all of them.
uint64_t connection_id(std::string_view what, const std::vector<int>& members);

}  // namespace tri
