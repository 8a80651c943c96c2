// Derives the first cause of an attempt's end, as opposed to its consequences, from all facts about it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/supervise/agent_messages.h"
#include "lib/supervise/history.h"

namespace tri {

struct EndFacts {
  std::optional<int> status;  // of the launcher; none: it was killed
  bool stop_requested = false;
  bool ranks_seen = false;                  // at least one rank has had a flight recorder
  std::optional<RunEvent> event;            // first_cause() of the event log
  std::string event_node;                   // its node, by the launcher's name; "": not in this allocation
  std::vector<std::string> suspects;        // nodes that the hang's report names, most certain first
  std::vector<AttemptCause> findings;       // from driver and agents, in the order in which they were first seen
  std::optional<AttemptCause> replacement;  // why the driver has requested the ranks to exit
  std::optional<AttemptCause> first_gone;   // the first rank that ended without reporting an error
  bool died_unnoticed = false;              // when the driver ended the attempt, the launcher had not noticed yet
};
// `now`: the time of the end, by the driver's monotonic clock. Findings more than five minutes older are ignored.
AttemptCause cause_of(const EndFacts& facts, double now);

// Returns the worst cause that a GPU reports: faults that are new since `before`, the previous observation, and
// persistent ones. None if there is no fault.
//
//   kGpuSick     it does not respond, requests a recovery action, has no rows left to remap, or an XID shows it
//
//   kGpuFault    an XID after which the program must be restarted, or uncorrected memory errors
//   kGpuSuspect  an XID that needs a closer look, or NVLinks that went down or were retrained
std::optional<AttemptCause> gpu_finding(const std::string& node, const GpuSight& before, const GpuSight& now);

}  // namespace tri
