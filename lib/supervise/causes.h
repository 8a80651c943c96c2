// From all that is known of an attempt's end, what has brought it about: the first cause, not its consequences.
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
  bool asked_to_stop = false;
  bool ranks_seen = false;                 // any rank has had a box
  std::optional<RunEvent> event;           // first_cause() of the run's book
  std::string event_node;                  // its node, by the launcher's name; "": not of this allocation
  std::vector<std::string> suspects;       // nodes that the hang's report names, the surest first
  std::vector<AttemptCause> findings;      // of driver and agents, in the order of time
  std::optional<AttemptCause> first_gone;  // the first rank that was seen gone without a word
};
AttemptCause cause_of(const EndFacts& facts);

// What a GPU says against itself, since `before` (the sight of it when the attempt began); none: nothing.
std::optional<AttemptCause> gpu_finding(const std::string& node, const GpuSight& before, const GpuSight& now);

}  // namespace tri
