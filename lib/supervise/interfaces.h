// What the driver of a supervised run acts on: the launcher of processes, the agents, and the run folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/supervise/agent_messages.h"
#include "lib/supervise/history.h"
#include "lib/supervise/thresholds.h"

namespace tri {

// A moment by both clocks of the driver's machine.
struct Moment {
  double monotonic = 0;  // seconds; more than 0. All durations are measured by it
  double wall = 0;       // seconds since 1970: dates in the run folder, which a person or NTP may set at any time
};

struct RanksStart {
  std::string attempt;
  int64_t number = 0;
  std::vector<std::string> nodes;
};

// Starts processes on nodes. No call waits.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual void start_agents(const std::vector<std::string>& nodes) = 0;
  // Returns the nodes whose agent could not be started, or has failed, since the last call; for nodes that were started
  // together it is unknown which. Of two starts of a node the later one counts.
  virtual std::vector<std::string> failed_agents() = 0;
  virtual void start_ranks(const RanksStart& start) = 0;
  virtual std::optional<int> ranks_status() = 0;  // of the ranks started last; none: they run
  virtual void drain_ranks() = 0;                 // they are to save a checkpoint and leave with 75
  enum class End { kRequest, kKill };
  virtual void end_ranks(End how) = 0;  // of the launcher's own process
};

class AgentLink {
 public:
  virtual ~AgentLink() = default;
  virtual bool send(const std::string& node, const AgentOrder& order) = 0;
};

// The run folder. Storage that hangs costs each call a second or two.
class RunLog {
 public:
  virtual ~RunLog() = default;
  virtual RunHistory history(double wall) = 0;  // exclusions that hold at `wall`, seconds since 1970
  virtual void append(RunEvent event, const std::string& attempt) = 0;
  virtual int64_t newest_checkpoint() = 0;
  virtual int64_t reached_step(const std::string& attempt) = 0;  // by its ranks' own events; 0: they name none
  virtual bool has_begun(const std::string& attempt) = 0;  // its ranks hold the run folder; true where that is unknown
  virtual std::optional<RunEvent> first_cause(const std::string& attempt) = 0;
  // Of the ranks that are much slower than their peers, and have been for long: the newest events that say so.
  virtual std::vector<RunEvent> stragglers(const std::string& attempt) = 0;
  virtual std::vector<std::string> suspects(const std::string& attempt) = 0;  // hosts
  virtual Thresholds thresholds() = 0;
};

}  // namespace tri
