// What an agent reports to the driver once a second, and the driver's orders. They are sent as bytes
// (lib/comm/host/messages.h), so both sides must have the same message layout. An agent's first message identifies its
// layout.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "io/flight_recorder/record.h"
#include "lib/comm/host/messages.h"

namespace tri {

// A rank of the attempt, from its flight recorder or, until it has one, from its process.
struct RankSight {
  int world_rank = 0;  // -1: unknown, without a flight recorder
  int process = 0;
  bool has_record = true;
  ProcessState state = ProcessState::kUnknown;
  RunPhase phase = RunPhase::kSetup;
  int64_t step = 0;
  uint32_t progress = 0;
  bool ended = false;
  double cpu_seconds = 0;  // CPU time used so far, without a flight recorder
};
template <class Archive>
void fields(Archive& archive, RankSight& r) {
  archive(r.world_rank, r.process, r.has_record, r.state, r.phase, r.step, r.progress, r.ended, r.cpu_seconds);
}

// How a rank has failed, from its flight recorder, which outlives it: available even if the run folder is not writable.
struct FailureSight {
  std::string attempt;
  int world_rank = 0;
  int status = 0;
  double time = 0;    // seconds since 1970
  int64_t step = -1;  // -1: before the first step
  std::string text;
};
template <class Archive>
void fields(Archive& archive, FailureSight& f) {
  archive(f.attempt, f.world_rank, f.status, f.time, f.step, f.text);
}

// A network port. Its counters are modulo 2^64; -1 if the driver can't read one.
struct PortSight {
  std::string name;
  bool up = true;
  int64_t changes = 0;                         // of its carrier; one flap counts as two
  int64_t received = 0, sent = 0, errors = 0;  // since its driver was loaded; bytes include RDMA's
};
template <class Archive>
void fields(Archive& archive, PortSight& p) {
  archive(p.name, p.up, p.changes, p.received, p.sent, p.errors);
}

struct GpuSight {
  std::string pci;            // "0000:18:00.0"
  std::vector<int> xids;      // since the agent began, in order; the newest 16
  int64_t num_xids = 0;       // ... their total number
  int64_t ecc_errors = 0;     // uncorrected, since the driver was loaded
  int64_t remapped_rows = 0;  // for uncorrected errors
  bool remap_failed = false;
  int recovery_action = 0;  // NVML's: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset; -1: unknown
  bool lost = false;        // it does not respond
  bool slowed = false;      // by heat or its power supply
  int nvlinks_up = 0;
  int64_t nvlink_recoveries = 0, nvlink_errors = 0;  // of all its NVLinks, since the driver was loaded
};
template <class Archive>
void fields(Archive& archive, GpuSight& g) {
  archive(g.pci, g.xids, g.num_xids, g.ecc_errors, g.remapped_rows, g.remap_failed, g.recovery_action, g.lost, g.slowed,
          g.nvlinks_up, g.nvlink_recoveries, g.nvlink_errors);
}

// If GPUs were not read for this long, their driver does not respond.
inline constexpr double kGpuSilentSeconds = 10;

// The first message of a connection. `node` and `host` come first in all versions of the program, so a driver of
// another build can always name the node.
struct AgentHello {
  std::string node;     // the launcher's name for it
  std::string host;     // its own host name (io/base/host.h)
  int64_t start = 0;    // number of the driver's start of agents: of two agents of a node, the higher number counts
  uint64_t layout = 0;  // messages_layout() of its build
};
template <class Archive>
void fields(Archive& archive, AgentHello& h) {
  archive(h.node, h.host, h.start, h.layout);
}

// Returns the readable part of the first message of a connection, of any build; `layout` is 0 if it is incomplete.
AgentHello hello_from(std::string_view bytes);

struct AgentReport {
  std::string node, host;  // of AgentHello
  int64_t start = 0;
  std::string attempt;  // to which these ranks belong; "": none is running
  std::vector<RankSight> ranks;
  int left = 0;                    // remaining processes of other attempts of the run
  uint64_t order = 0;              // number of the last one received; 0: none
  int doctor_status = -1;          // exit status of the `trireme doctor` requested last; -1: it has not ended
  std::vector<std::string> lines;  // new lines of logs and of the kernel that contain one of the keywords
  std::vector<PortSight> ports;
  std::vector<GpuSight> gpus;
  double daemon_gone = 0;               // seconds since the node's slurmd was found gone; 0: it runs, or is unknown
  double gpu_age = 0;                   // seconds since the GPUs were read; grows if their driver hangs
  std::optional<FailureSight> failure;  // of the attempt watched last: the first rank that failed by itself
  bool sees_run = true;                 // whether the node saw the event log when the last attempt was ended
  std::string watched;                  // the attempt watched last, which may have ended
  int64_t step = 0;                     // ... and the last step that its flight recorders here show
};
template <class Archive>
void fields(Archive& archive, AgentReport& r) {
  archive(r.node, r.host, r.start, r.attempt, r.ranks, r.left, r.order, r.doctor_status, r.lines, r.ports, r.gpus,
          r.gpu_age, r.daemon_gone, r.failure, r.sees_run, r.watched, r.step);
}

// Whether `a` is more likely the first cause: communication fails as a consequence of other failures.
bool is_before(const FailureSight& a, const FailureSight& b);

// Shortens the report of a node with hundreds of ports or ranks until it fits into a frame.
void keep_within_a_frame(AgentReport& report);

enum class OrderKind : uint32_t {
  kPulse,   // the driver is alive
  kWatch,   // `attempt` is the current one; processes of others are killed
  kEnd,     // there is no current attempt; processes of all are killed
  kDoctor,  // run `trireme doctor`
  kLeave,   // the driver exits; the run may continue
  kFinish,  // the run is over: the agent removes its checkpoints in memory, and exits
};
template <>
struct EnumNames<OrderKind> {
  static constexpr std::array table{std::pair{OrderKind::kPulse, std::string_view("pulse")},
                                    std::pair{OrderKind::kWatch, std::string_view("watch")},
                                    std::pair{OrderKind::kEnd, std::string_view("end")},
                                    std::pair{OrderKind::kDoctor, std::string_view("doctor")},
                                    std::pair{OrderKind::kLeave, std::string_view("leave")},
                                    std::pair{OrderKind::kFinish, std::string_view("finish")}};
};

struct AgentOrder {
  OrderKind kind = OrderKind::kPulse;
  uint64_t number = 0;  // grows with every order except for pulses, which have 0
  std::string attempt;
  double timeout = 0;  // for kDoctor, in seconds: how long the driver waits for the result
};
template <class Archive>
void fields(Archive& archive, AgentOrder& o) {
  archive(o.kind, o.number, o.attempt, o.timeout);
}

// Returns the order in `bytes`, or nothing if it is of another build or its values are invalid.
std::optional<AgentOrder> order_from(std::string_view bytes);

// Returns a hash of the types of all fields of reports and orders, in order, and of the names of enum values: equal for
// builds with the same messages.
uint64_t messages_layout();

}  // namespace tri
