// The contents of a flight recorder as plain values: read from the file of a living, stopped or dead rank, or from a
// dump.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/base/rank_grid.h"
#include "io/flight_recorder/image.h"

namespace tri {

// kTraced: a debugger holds it, which is not a fault.
enum class ProcessState { kUnknown, kRuns, kStopped, kTraced, kGone };

template <>
struct EnumNames<ProcessState> {
  static constexpr std::array table{std::pair{ProcessState::kUnknown, std::string_view("unknown")},
                                    std::pair{ProcessState::kRuns, std::string_view("runs")},
                                    std::pair{ProcessState::kStopped, std::string_view("stopped")},
                                    std::pair{ProcessState::kTraced, std::string_view("traced")},
                                    std::pair{ProcessState::kGone, std::string_view("gone")}};
};

struct ChannelRecord {
  std::string name;
  ChannelKind kind = ChannelKind::kCollectives;
  RankSet members;
  int index = 0;  // of this rank among the members
  uint32_t enqueued = 0, joined = 0, sent = 0, completed = 0;
  uint32_t whole = 0;  // the last enqueued operation of which the host has enqueued all parts
  ChannelOperation operation = ChannelOperation::kNone;  // of the last enqueued
  int64_t bytes = 0;
};

struct ActionRecord {
  struct Wait {
    int channel = 0;  // index in RankRecord::channels
    uint32_t sequence = 0;
  };
  uint32_t number = 0;
  ComputeKind kind = ComputeKind::kOther;
  int chunk = 0, microbatch = 0;
  std::vector<Wait> waits;
};

struct LoaderRecord {
  int reader = -1;  // world rank; -1: this rank takes no tokens from this loader
  uint32_t wanted = 0;
  ReaderState reader_state = ReaderState::kNone;
  uint32_t published = 0;
  double seconds = 0;  // in the reader's state
};

// The writer of a checkpoint or, if lines of metrics.jsonl have been waiting longer, of lines.
struct WriterRecord {
  WriterState state = WriterState::kIdle;
  uint32_t progress = 0;
  int64_t step = 0;
  double seconds = 0;  // since its last progress
};

struct FailureRecord {
  int code = 0;
  bool consequence = false;
  int64_t realtime = 0;  // nanoseconds since 1970
  std::string text;
};

struct EventRecord {
  double seconds = 0;  // before the record was made
  FlightEventKind kind = FlightEventKind::kPhase;
  uint32_t what = 0;
  int64_t value = 0;
};

struct LogRecord {
  double seconds = 0;  // before the record was made
  std::string text;
};

struct StackRecord {
  int thread = 0;
  std::string name;
  std::vector<uint64_t> frames;      // addresses in the process, innermost first
  std::vector<std::string> symbols;  // of the frames, if they were looked up
};

struct StreamRecord {
  std::string name;
  StreamActivity state = StreamActivity::kUnknown;
};

// Ages are seconds before the record was made.
struct RankRecord {
  int world_rank = 0, world_size = 1;
  RankGrid grid = unnamed_grid(1, 1, 1);  // of the job, as far as the rank knows it
  std::string host, attempt, job, gpu, run_dir;
  int process = 0;
  int64_t process_namespace = 0, process_start = 0;
  ProcessState process_state = ProcessState::kUnknown;
  double uptime = 0;    // since the flight recorder was made
  int64_t created = 0;  // when the flight recorder was made, ns of its machine's monotonic clock; not part of the JSON
  double taken = 0;     // when the record was made, in seconds since 1970 by its host's clock; 0: unknown

  RunPhase phase = RunPhase::kSetup;
  HostState host_state = HostState::kWorks;
  double phase_seconds = 0, host_seconds = 0, beat_seconds = 0, last_event_seconds = 0;
  int64_t step = 0, steps = 0;
  uint32_t progress = 0;
  bool ended = false;
  double step_seconds = 0;  // of the last step

  uint64_t connection = 0;  // in progress; 0: none
  std::string connection_name;
  // Its members: as a progression, or by name; both empty: possibly all ranks.
  RankSet connection_set;
  std::vector<int> connection_members;
  std::vector<uint64_t> connections_done;

  uint32_t actions_enqueued = 0, action_entered = 0, action_running = 0;
  std::optional<ActionRecord> action;  // the one entered last, if its entry was not overwritten
  std::vector<ChannelRecord> channels;
  std::array<LoaderRecord, 2> loaders;  // training, validation
  WriterRecord writer;
  std::optional<FailureRecord> failure;

  std::vector<StreamRecord> streams;
  std::vector<StackRecord> stacks;
  std::vector<LogRecord> log;       // oldest first
  std::vector<EventRecord> events;  // oldest first
};

// Returns "rank 13 [pp1 dp0 tp1] on node07 (GPU 0000:18:00.0)".
std::string to_string_place(const RankRecord& record);

// Reads a flight recorder; process_state stays unknown. Fails if the file cannot be read, belongs to another user (root
// may read all), or is not a flight recorder of a known version. `max_events`: of the newest.
Result<RankRecord> read_flight_record(const std::string& path, int max_events = flight::kEvents);
// Returns the paths of all flight recorders in flight_record_folder(), by name; for root, those of all users.
std::vector<std::string> list_flight_records();
// Returns the state of the record's process; kUnknown if it is on another machine or in another namespace.
ProcessState process_state_of(const RankRecord& record);
// The same for the process that created a file, whatever the version of the program; kUnknown also for a file that is
// not (yet) a flight recorder. Safe for concurrent use.
ProcessState state_of_recorded_process(const std::string& path);
// Converts the letter in /proc/PID/stat.
ProcessState process_state_from(char letter);
// Returns whether the process exists, whether or not it is held up.
inline bool is_there(ProcessState state) {
  return state == ProcessState::kRuns || state == ProcessState::kStopped || state == ProcessState::kTraced;
}

}  // namespace tri
