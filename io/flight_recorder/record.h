// What a flight recorder says, as plain values: read from the file of a living, stopped or dead rank, or from a dump.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/base/rank_grid.h"
#include "io/flight_recorder/image.h"

namespace tri {

// kTraced: a debugger holds it, which is nobody's fault.
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
  uint32_t whole = 0;  // of the operations enqueued, the last that the host has enqueued all parts of
  ChannelOperation operation = ChannelOperation::kNone;  // the last enqueued
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
  int reader = -1;  // world rank; -1: this rank takes no tokens of this loader
  uint32_t wanted = 0;
  ReaderState reader_state = ReaderState::kNone;
  uint32_t published = 0;
  double seconds = 0;  // in the reader's state
};

// Of a checkpoint or, where those of metrics.jsonl stand still for longer, of lines.
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
  std::vector<std::string> symbols;  // of them, where they were looked up
};

struct StreamRecord {
  std::string name;
  StreamActivity state = StreamActivity::kUnknown;
};

// Ages are seconds before the record was made.
struct RankRecord {
  int world_rank = 0, world_size = 1;
  RankGrid grid = unnamed_grid(1, 1, 1);  // of the job, as far as the rank knows it yet
  std::string host, attempt, job, gpu, run_dir;
  int process = 0;
  int64_t process_namespace = 0, process_start = 0;
  ProcessState process_state = ProcessState::kUnknown;
  double uptime = 0;    // since the flight recorder was made
  int64_t created = 0;  // when the flight recorder was made, ns of its machine's monotonic clock; not part of the JSON
  double taken = 0;     // when the record was made, seconds since 1970 by its host's clock; 0: not known

  RunPhase phase = RunPhase::kSetup;
  HostState host_state = HostState::kWorks;
  double phase_seconds = 0, host_seconds = 0, beat_seconds = 0, last_event_seconds = 0;
  int64_t step = 0, steps = 0;
  uint32_t progress = 0;
  bool ended = false;
  double step_seconds = 0;  // of the last step

  uint64_t connection = 0;  // under way; 0: none
  std::string connection_name;
  // Who meets in it: as a progression, or by name; both empty: it may be all ranks.
  RankSet connection_set;
  std::vector<int> connection_members;
  std::vector<uint64_t> connections_done;

  uint32_t actions_enqueued = 0, action_entered = 0, action_running = 0;
  std::optional<ActionRecord> action;  // the one entered last, if its entry is still there
  std::vector<ChannelRecord> channels;
  std::array<LoaderRecord, 2> loaders;  // training, validation
  WriterRecord writer;
  std::optional<FailureRecord> failure;

  std::vector<StreamRecord> streams;
  std::vector<StackRecord> stacks;
  std::vector<LogRecord> log;       // oldest first
  std::vector<EventRecord> events;  // oldest first
};

// "rank 13 [pp1 dp0 tp1] on node07 (GPU 0000:18:00.0)"
std::string to_string_place(const RankRecord& record);

// The record of a flight recorder; process_state is not known from it. Error: the file can't be read, is another user's
// (root reads all), or is no flight recorder of this version. `max_events`: of the newest.
Result<RankRecord> read_flight_record(const std::string& path, int max_events = flight::kEvents);
// Paths of all flight recorders in flight_record_folder(), by name; for root, of all users.
std::vector<std::string> list_flight_records();
// Whether the process of the record still is, and runs; kUnknown where it can't be asked (another machine, namespace).
ProcessState process_state_of(const RankRecord& record);
// The same for the process that made a file, whatever version of the program that was; kUnknown also for a file that is
// no flight recorder, or none yet. Safe for concurrent use.
ProcessState state_of_recorded_process(const std::string& path);
// Of the letter in /proc/PID/stat.
ProcessState process_state_from(char letter);
// Whether the process is there, whatever holds it up.
inline bool is_there(ProcessState state) {
  return state == ProcessState::kRuns || state == ProcessState::kStopped || state == ProcessState::kTraced;
}

}  // namespace tri
