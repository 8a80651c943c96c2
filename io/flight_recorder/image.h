// The flight recorder of one rank, in memory that outlives the process: what the rank is doing, and how far its
// transfers are. The rank's threads and its device's streams write it with single stores. Any process of the same user
// may read it at any time, also when the rank is stopped, hangs in a driver or is dead. Training never reads it.
//
// Counters of operations are 32-bit words, the only size that a GPU's stream can write, and are compared modulo 2^32.
// Times are nanoseconds of CLOCK_MONOTONIC, the same for all processes of a machine; times of events have the
// resolution of a kernel tick, 1 to 10 ms, and events of one tick are in the order in which they happened. The host and
// the streams write to different cache lines.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "io/base/enum_names.h"

namespace tri {

// The phase of a run; each has its own deadline (lib/fault/watchdog.h).
enum class RunPhase : uint32_t { kSetup, kLoad, kStep, kCheckpoint, kEvaluation, kSample, kFinish };
inline constexpr int kNumRunPhases = 7;

template <>
struct EnumNames<RunPhase> {
  static constexpr std::array table{std::pair{RunPhase::kSetup, std::string_view("setup")},
                                    std::pair{RunPhase::kLoad, std::string_view("load")},
                                    std::pair{RunPhase::kStep, std::string_view("step")},
                                    std::pair{RunPhase::kCheckpoint, std::string_view("checkpoint")},
                                    std::pair{RunPhase::kEvaluation, std::string_view("evaluation")},
                                    std::pair{RunPhase::kSample, std::string_view("sample")},
                                    std::pair{RunPhase::kFinish, std::string_view("finish")}};
};

// The state of the training thread where it may take long.
enum class HostState : uint32_t {
  kWorks,             // runs its own code: reads, prepares, enqueues
  kAwaitsDevice,      // waits for its streams
  kAwaitsJob,         // in a call that all ranks of the job make: the channel "job"
  kAwaitsData,        // waits for the tokens of a step
  kAwaitsCheckpoint,  // waits for its thread that writes a checkpoint
  kConnects,          // connects to the members of a group: `connection`
};

template <>
struct EnumNames<HostState> {
  static constexpr std::array table{std::pair{HostState::kWorks, std::string_view("works")},
                                    std::pair{HostState::kAwaitsDevice, std::string_view("awaits its device")},
                                    std::pair{HostState::kAwaitsJob, std::string_view("awaits all ranks")},
                                    std::pair{HostState::kAwaitsData, std::string_view("awaits data")},
                                    std::pair{HostState::kAwaitsCheckpoint, std::string_view("awaits its checkpoint")},
                                    std::pair{HostState::kConnects, std::string_view("connects")}};
};

// What the compute stream runs: an action of the Plan, or work between plans.
enum class ComputeKind : uint8_t { kForward, kBackward, kUpdate, kOther, kWeight };

template <>
struct EnumNames<ComputeKind> {
  static constexpr std::array table{std::pair{ComputeKind::kForward, std::string_view("forward")},
                                    std::pair{ComputeKind::kBackward, std::string_view("backward")},
                                    std::pair{ComputeKind::kUpdate, std::string_view("update")},
                                    std::pair{ComputeKind::kOther, std::string_view("other work")},
                                    std::pair{ComputeKind::kWeight, std::string_view("weight gradients")}};
};

enum class ChannelKind : uint32_t {
  kCollectives,  // by NCCL or MPI: joined and sent are one
  kCopies,       // into the peers' memory
  kSend,         // this rank's end of a one-way edge between stages: the source
  kReceive,      // ... the target
  kHost,         // host calls that all ranks of the job make
};

template <>
struct EnumNames<ChannelKind> {
  static constexpr std::array table{std::pair{ChannelKind::kCollectives, std::string_view("collectives")},
                                    std::pair{ChannelKind::kCopies, std::string_view("copies")},
                                    std::pair{ChannelKind::kSend, std::string_view("send")},
                                    std::pair{ChannelKind::kReceive, std::string_view("receive")},
                                    std::pair{ChannelKind::kHost, std::string_view("host")}};
};

enum class ChannelOperation : uint32_t {
  kNone,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kSend,
  kReceive,
  kHostCall,
  kExchange
};

template <>
struct EnumNames<ChannelOperation> {
  static constexpr std::array table{std::pair{ChannelOperation::kNone, std::string_view("nothing")},
                                    std::pair{ChannelOperation::kAllGather, std::string_view("all-gather")},
                                    std::pair{ChannelOperation::kReduceScatter, std::string_view("reduce-scatter")},
                                    std::pair{ChannelOperation::kAllReduce, std::string_view("all-reduce")},
                                    std::pair{ChannelOperation::kBroadcast, std::string_view("broadcast")},
                                    std::pair{ChannelOperation::kSend, std::string_view("send")},
                                    std::pair{ChannelOperation::kReceive, std::string_view("receive")},
                                    std::pair{ChannelOperation::kHostCall, std::string_view("call")},
                                    std::pair{ChannelOperation::kExchange, std::string_view("exchange")}};
};

// The state of the thread that reads tokens for its node.
enum class ReaderState : uint32_t { kNone, kReads, kAwaitsConsumers, kDone };

template <>
struct EnumNames<ReaderState> {
  static constexpr std::array table{std::pair{ReaderState::kNone, std::string_view("none")},
                                    std::pair{ReaderState::kReads, std::string_view("reads")},
                                    std::pair{ReaderState::kAwaitsConsumers, std::string_view("awaits takers")},
                                    std::pair{ReaderState::kDone, std::string_view("done")}};
};

// The state of the threads that write or read a checkpoint, and of the one that appends to metrics.jsonl.
enum class WriterState : uint32_t { kIdle, kCopies, kWrites, kPublishes, kAppends, kReads };

template <>
struct EnumNames<WriterState> {
  static constexpr std::array table{std::pair{WriterState::kIdle, std::string_view("idle")},
                                    std::pair{WriterState::kCopies, std::string_view("copies from the device")},
                                    std::pair{WriterState::kWrites, std::string_view("writes")},
                                    std::pair{WriterState::kPublishes, std::string_view("publishes")},
                                    std::pair{WriterState::kAppends, std::string_view("appends")},
                                    std::pair{WriterState::kReads, std::string_view("reads")}};
};

// The state of a stream when a dump was requested.
enum class StreamActivity : uint32_t { kUnknown, kIdle, kBusy, kFailed };

template <>
struct EnumNames<StreamActivity> {
  static constexpr std::array table{std::pair{StreamActivity::kUnknown, std::string_view("unknown")},
                                    std::pair{StreamActivity::kIdle, std::string_view("idle")},
                                    std::pair{StreamActivity::kBusy, std::string_view("busy")},
                                    std::pair{StreamActivity::kFailed, std::string_view("failed")}};
};

enum class FlightEventKind : uint32_t { kPhase, kHost, kAction, kTransfer, kReader, kWriter, kSignal };

template <>
struct EnumNames<FlightEventKind> {
  static constexpr std::array table{std::pair{FlightEventKind::kPhase, std::string_view("phase")},
                                    std::pair{FlightEventKind::kHost, std::string_view("host")},
                                    std::pair{FlightEventKind::kAction, std::string_view("action")},
                                    std::pair{FlightEventKind::kTransfer, std::string_view("transfer")},
                                    std::pair{FlightEventKind::kReader, std::string_view("reader")},
                                    std::pair{FlightEventKind::kWriter, std::string_view("writer")},
                                    std::pair{FlightEventKind::kSignal, std::string_view("signal")}};
};

// A group of ranks: world ranks first, first + stride, ... (an axis of the mesh, a pair, all).
struct RankSet {
  int32_t first = 0, stride = 1, size = 0;
  int32_t rank(int index) const { return first + index * stride; }
  bool operator==(const RankSet&) const = default;
};

namespace flight {

using Count = std::atomic<uint32_t>;
using Time = std::atomic<int64_t>;
static_assert(Count::is_always_lock_free && Time::is_always_lock_free);
static_assert(sizeof(Count) == sizeof(uint32_t), "a GPU's stream writes the bare word");

inline constexpr uint64_t kMagic = 0x584f424b434c4254;            // "TBLCKBOX" in bytes
inline constexpr uint32_t kVersion = 7, kVersionWithoutAxes = 6;  // both can be read
inline constexpr int kMaxChannels = 64, kMaxWaits = 3, kMaxStreams = 24;
inline constexpr int kEvents = 4096, kLogLines = 32, kLogBytes = 240;
inline constexpr int kThreads = 64, kFrames = 48;
inline constexpr int kMaxConnections = 256;
inline constexpr int kMaxAxes = 8;

// Operations of a channel are numbered from 1. Each counter holds the number of the last operation that has got so far;
// from `enqueued` to `completed` they can only decrease.
struct alignas(64) Channel {
  char name[24];  // "tp", "tp copies", "pp forward": with `members`, the same on all of them
  uint32_t kind;  // ChannelKind
  RankSet members;
  int32_t index;               // of this rank among the members
  Count enqueued;              // by the host
  Count whole;                 // kCopies: the last operation of which the host has enqueued everything, sends and waits
  Count operation;             // ChannelOperation of the last enqueued
  std::atomic<int64_t> bytes;  // of all enqueued operations
  alignas(64) Count joined;    // the stream has reached the operation: peers can rely on this rank from here on
  Count sent;                  // ... and this rank's contribution has been sent
  Count completed;             // ... and what it waits for has arrived
};
static_assert(sizeof(Channel) == 128);

// A compute action, with the transfers between stages that it needs before it can begin.
struct Action {
  uint32_t number;  // from 1, over the whole run: shows whether this entry was overwritten
  uint8_t kind;     // ComputeKind
  uint8_t num_waits;
  uint16_t chunk;
  int32_t microbatch;
  uint32_t channels[kMaxWaits];   // index in Image::channels
  uint32_t sequences[kMaxWaits];  // number of the operation that must be complete
};

// The status of one of the two loaders, for training and for validation.
struct LoaderStatus {
  std::atomic<int32_t> reader;  // world rank that reads for this one; -1: none
  Count wanted;                 // the batch (from 1) for which this rank waits or last waited
  Count reader_state;           // ReaderState; if this rank reads
  Count published;              // batches that are complete; if this rank reads
  Time since;                   // of the reader's state
};

struct Writer {
  Count state;     // WriterState
  Count progress;  // increases with every block that is copied or written
  std::atomic<int64_t> step;
  Time since;  // of the state or, if later, of the last progress
};

// A connection that this rank has made.
struct Connection {
  uint64_t id;  // hash of its name and its members
  Count done;   // 1: this rank has left it
};

struct Failure {
  Count state;  // 1: the other fields are complete
  uint32_t code;
  uint32_t consequence;  // 1: it is the consequence of another rank's end
  int64_t realtime;      // nanoseconds since 1970
  char text[500];
};

struct Event {
  int64_t time;
  uint32_t kind;  // FlightEventKind
  uint32_t what;  // phase, state, channel index or compute kind
  int64_t value;  // step, sequence number, microbatch
};

struct LogLine {
  int64_t time;
  char text[kLogBytes];
};

struct Stack {
  int32_t thread;
  Count depth;  // of `frames`; 0: not recorded yet
  char name[16];
  uint64_t frames[kFrames];  // addresses in the process, innermost first
};

struct GridSize {
  char name[12];
  int32_t size;
};

struct StreamState {
  char name[24];
  Count state;  // StreamActivity
};

// All zero is an empty flight recorder: a new file.
struct Image {
  // Identity, written before the file gets its name. The fields up to created_realtime are the same in all versions, so
  // that every version of the program can check whether the process of a file has ended.
  uint64_t magic;
  uint32_t version;
  uint32_t bytes;        // of the file
  uint32_t num_actions;  // entries of Action after this struct
  int32_t world_rank, world_size;
  int32_t place[6];  // version 6: rank and size on pp, on dp and on tp; later versions: `axes`
  int32_t process;   // in the namespace `process_namespace`
  int64_t process_namespace,
      process_start;  // field 22 of /proc/PID/stat: distinguishes the process from a later one with the same id
  int64_t created;
  int64_t created_realtime;  // the same moment, in nanoseconds since 1970
  // Each holds the longest value that the system allows, and a zero, so that none is truncated: names are compared.
  char host[256], attempt[72], job[128], gpu[24];  // gpu: its PCI id; "": none
  char run_dir[4096];                              // absolute

  // What the rank is doing.
  Count phase, host_state;  // RunPhase, HostState
  Time phase_since, host_since;
  Time beat;                              // the watchdog's thread was running
  std::atomic<int64_t> step, steps;       // current step, steps of the run
  Count progress;                         // increases with every sign of progress of the training thread
  Count ended;                            // 1: the run has ended on this rank without an error
  std::atomic<int64_t> step_nanoseconds;  // of the last step
  std::atomic<uint64_t> connection;       // in progress: Connection::id; 0: none
  char connection_name[108];
  // Its members: connection_set or, if they are no progression and at most 64, the list connection_members. Larger sets
  // that are no progression are not recorded.
  RankSet connection_set;
  Count connection_size;
  std::atomic<int32_t> connection_members[64];

  // Compute actions: enqueued, waiting for their inputs, running.
  Count actions_enqueued;
  alignas(64) Count action_entered, action_running;
  alignas(64) Count num_channels;
  Channel channels[kMaxChannels];
  LoaderStatus loaders[2];  // training, validation
  Writer writer;
  Writer lines;                             // of metrics.jsonl: updated by the watchdog (io/base/line_file.h)
  Count num_connections;                    // in total
  Connection connections[kMaxConnections];  // the newest, a ring
  Failure failure;

  // Requests of other processes, and the answers.
  Count dump_requested, dump_answered;  // counts
  Count stack_signal;                   // the signal that its threads answer with their stacks; 0: none yet
  Count dumps;  // in the flight recorder of a node's first rank: dumps in which the node has taken part
  Time hang_dump_began, requested_dump_began;  // ... and when one of its ranks began the last dump of each kind
  Count num_stacks, num_streams;
  Stack stacks[kThreads];
  StreamState streams[kMaxStreams];

  // The recent past.
  Count num_log_lines, num_events;  // in total; entries form rings
  LogLine log[kLogLines];
  Event events[kEvents];

  // Since version 7: the job's grid, fastest axis first (io/base/rank_grid.h).
  uint32_t num_axes;
  GridSize axes[kMaxAxes];
};
static_assert(offsetof(Image, magic) == 0);

inline constexpr size_t kActionsOffset = (sizeof(Image) + 63) / 64 * 64;
// Version 6 is the same, but ends before the axes.
inline constexpr size_t kActionsOffset6 = (offsetof(Image, num_axes) + 63) / 64 * 64;

}  // namespace flight
}  // namespace tri
