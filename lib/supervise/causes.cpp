#include "lib/supervise/causes.h"

#include <algorithm>
#include <array>

namespace tri {
namespace {

// NVIDIA's catalogue: a GPU that is to be reset or replaced, a machine that is to be started anew.
constexpr std::array kSickXids{46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 158};
constexpr std::array kFaultXids{13, 94};  // ... a program that is to be started again

template <size_t N>
bool one_of(int xid, const std::array<int, N>& xids) {
  return std::find(xids.begin(), xids.end(), xid) != xids.end();
}

std::optional<CauseKind> kind_of_status(int status) {
  switch (status) {
    case static_cast<int>(ExitCode::kUsage):
      return CauseKind::kUsage;
    case static_cast<int>(ExitCode::kFile):
      return CauseKind::kFile;
    case static_cast<int>(ExitCode::kDevice):
      return CauseKind::kDevice;
    case static_cast<int>(ExitCode::kComm):
      return CauseKind::kCommunication;
    case static_cast<int>(ExitCode::kWatchdog):
      return CauseKind::kHangOfProgram;
    case static_cast<int>(ExitCode::kNotFinite):
      return CauseKind::kNotFinite;
    default:
      return status > 128 ? std::optional(CauseKind::kDeath) : std::nullopt;
  }
}

AttemptCause of_event(const EndFacts& facts, const RunEvent& event) {
  const int status = static_cast<int>(event.number("code", facts.status.value_or(0)));
  AttemptCause cause{.node = facts.event_node, .world_rank = event.world_rank, .text = describe(event)};
  if (event.kind == RunEventKind::kHang || status == static_cast<int>(ExitCode::kWatchdog)) {
    cause.kind = facts.suspects.empty() ? CauseKind::kHangOfProgram : CauseKind::kHang;
    cause.node = facts.suspects.empty() ? "" : facts.suspects.front();
  } else if (!event.string("seen_by").empty() || event.number("seen_by", -1) >= 0) {
    cause.kind = CauseKind::kDeath;  // a neighbour speaks for a rank that could not
  } else if (event.flag("consequence") && facts.first_gone) {
    cause = *facts.first_gone;
  } else {
    cause.kind = kind_of_status(status).value_or(CauseKind::kUnknown);
    const bool nobodys =
        cause.kind == CauseKind::kCommunication || cause.kind == CauseKind::kUsage || cause.kind == CauseKind::kFile;
    if (nobodys) cause.node.clear();
  }
  return cause;
}

}  // namespace

AttemptCause cause_of(const EndFacts& facts) {
  const int status = facts.status.value_or(0);
  const auto with_status = [&](AttemptCause cause) {
    cause.status = status;
    return cause;
  };
  if (facts.status == 0) return with_status({.kind = CauseKind::kFinished, .text = "finished"});
  if (facts.asked_to_stop) return with_status({.kind = CauseKind::kDrained, .text = "stopped on request"});
  // A node that is gone explains whatever else is seen.
  for (const AttemptCause& finding : facts.findings)
    if (finding.kind == CauseKind::kNodeLost) return with_status(finding);
  if (!facts.findings.empty()) return with_status(facts.findings.front());
  if (status == static_cast<int>(ExitCode::kDrained))
    return with_status({.kind = CauseKind::kSetAside, .text = "its ranks left with status 75"});
  if (facts.event) return with_status(of_event(facts, *facts.event));
  if (facts.first_gone) return with_status(*facts.first_gone);
  if (!facts.ranks_seen && !kind_of_status(status))
    return with_status({.kind = CauseKind::kNotStarted,
                        .text = fmt::format("the launcher ended with status {} before a rank had begun", status)});
  return with_status({.kind = kind_of_status(status).value_or(CauseKind::kUnknown),
                      .text = fmt::format("the launcher ended with status {}", status)});
}

std::optional<AttemptCause> gpu_finding(const std::string& node, const GpuSight& before, const GpuSight& now) {
  const auto finding = [&](CauseKind kind, const std::string& what) {
    return AttemptCause{.kind = kind, .node = node, .text = fmt::format("GPU {} on {}: {}", now.pci, node, what)};
  };
  constexpr std::array kActions{"none", "reset", "reboot", "drain of its peers", "drain and reset"};
  if (now.recovery_action > 0)
    return finding(CauseKind::kGpuSick,
                   fmt::format("NVML asks for {}", now.recovery_action < static_cast<int>(kActions.size())
                                                       ? kActions[static_cast<size_t>(now.recovery_action)]
                                                       : "action"));
  if (now.remap_failed && !before.remap_failed) return finding(CauseKind::kGpuSick, "no rows are left to remap");
  const size_t known = std::min(before.xids.size(), now.xids.size());
  for (const auto kind : {CauseKind::kGpuSick, CauseKind::kGpuFault})
    for (size_t i = known; i < now.xids.size(); ++i) {
      const int xid = now.xids[i];
      const bool counts = kind == CauseKind::kGpuSick ? one_of(xid, kSickXids) : one_of(xid, kFaultXids);
      if (counts) return finding(kind, fmt::format("XID {}", xid));
    }
  return std::nullopt;
}

}  // namespace tri
