// What the driver of a supervised run uses: the launcher of processes, the agents, and the run folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/supervise/agent_messages.h"
#include "lib/supervise/history.h"
#include "lib/supervise/thresholds.h"

namespace tri {

// A point in time on both clocks of the driver's machine.
struct Moment {
  double monotonic = 0;  // seconds, positive. All durations use it
  double wall = 0;       // seconds since 1970, for dates in the run folder; it may be set at any time
};

struct RanksStart {
  std::string attempt;
  int64_t number = 0;
  std::vector<std::string> nodes;
};

// Starts processes on nodes. No call blocks.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual void start_agents(const std::vector<std::string>& nodes) = 0;
  // Returns the nodes whose agent could not be started or has failed since the last call; if nodes were started
  // together, all of them, since it is unknown which failed. Of two starts on a node the later one counts.
  virtual std::vector<std::string> failed_agents() = 0;
  virtual void start_ranks(const RanksStart& start) = 0;
  virtual std::optional<int> ranks_status() = 0;  // of the ranks started last; none: they run
  virtual void drain_ranks() = 0;                 // requests a checkpoint and an exit with status 75
  enum class End { kRequest, kKill };
  virtual void end_ranks(End how) = 0;  // ends the launcher's own process
};

class AgentLink {
 public:
  virtual ~AgentLink() = default;
  virtual bool send(const std::string& node, const AgentOrder& order) = 0;
};

// The run folder. If storage hangs, each call takes a second or two.
class RunLog {
 public:
  virtual ~RunLog() = default;
  virtual RunHistory history(double wall) = 0;  // with exclusions in force at `wall`, seconds since 1970
  virtual void append(RunEvent event, const std::string& attempt) = 0;
  virtual int64_t newest_checkpoint() = 0;
  virtual int64_t reached_step(const std::string& attempt) = 0;  // from its ranks' events; 0: unknown
  virtual bool has_begun(const std::string& attempt) = 0;        // its ranks hold the run folder; true if unknown
  virtual std::optional<RunEvent> first_cause(const std::string& attempt) = 0;
  // Returns the newest events of ranks that have been much slower than their peers for long.
  virtual std::vector<RunEvent> stragglers(const std::string& attempt) = 0;
  virtual std::vector<std::string> suspects(const std::string& attempt) = 0;  // hosts
  virtual Thresholds thresholds() = 0;
};

}  // namespace tri
