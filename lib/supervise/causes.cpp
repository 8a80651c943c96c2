#include "lib/supervise/causes.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "io/base/process_end.h"

namespace tri {
namespace {

// XIDs from NVIDIA's catalogue after which the GPU must be reset or replaced, or the machine rebooted.
constexpr std::array kSickXids{46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 158};
constexpr std::array kFaultXids{8, 13, 32, 94};                        // ... the program must be restarted
constexpr std::array kSuspectXids{144, 145, 146, 147, 148, 149, 150};  // ... the NVLinks must be examined
// All others (31, 43, 45, 63, 92, ...) are the program's own, or follow from these.

constexpr double kRecentSeconds = 300;

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
      // 128 + a signal. srun has larger statuses of its own, such as 233 if a node accepts no task.
      return status > 128 && status <= 128 + 64 ? std::optional(CauseKind::kDeath) : std::nullopt;
  }
}

AttemptCause of_event(const EndFacts& facts, const RunEvent& event) {
  const int status = static_cast<int>(event.number("code", facts.status.value_or(0)));
  AttemptCause cause{.node = facts.event_node,
                     .world_rank = event.world_rank,
                     .text = describe(event),
                     .step = static_cast<int64_t>(event.number("step", -1))};
  if (event.kind == RunEventKind::kHang || status == static_cast<int>(ExitCode::kWatchdog)) {
    cause.kind = facts.suspects.empty() ? CauseKind::kHangOfProgram : CauseKind::kHang;
    cause.node = facts.suspects.empty() ? "" : facts.suspects.front();
  } else if (!event.string("seen_by").empty() || event.number("seen_by", -1) >= 0) {
    cause.kind = CauseKind::kDeath;  // another rank reported the failure
  } else if (event.flag("consequence") && facts.first_gone) {
    cause = *facts.first_gone;
  } else {
    cause.kind = kind_of_status(status).value_or(CauseKind::kUnknown);
    const bool unattributed =
        event.world_rank < 0 || cause.kind == CauseKind::kCommunication || cause.kind == CauseKind::kUsage;
    if (unattributed) cause.node.clear();
  }
  return cause;
}

bool is_suspicion(CauseKind kind) { return kind == CauseKind::kGpuSuspect || kind == CauseKind::kPortErrors; }

// Returns recent trouble of links that may have caused a failure that names no other node. Errors on ports of several
// nodes point to a shared switch, so no node is named then.
std::optional<AttemptCause> recent_suspicion(const EndFacts& facts, const AttemptCause& cause, double now) {
  if (cause.kind == CauseKind::kNotFinite || cause.kind == CauseKind::kUsage || cause.kind == CauseKind::kFile)
    return std::nullopt;
  std::set<std::string> with_errors;
  for (const AttemptCause& finding : facts.findings)
    if (finding.kind == CauseKind::kPortErrors && now - finding.time <= kRecentSeconds)
      with_errors.insert(finding.node);
  for (const AttemptCause& finding : facts.findings) {
    const bool shared = finding.kind == CauseKind::kPortErrors && with_errors.size() > 1;
    if (is_suspicion(finding.kind) && !shared && now - finding.time <= kRecentSeconds &&
        (cause.node.empty() || cause.node == finding.node))
      return finding;
  }
  if (with_errors.size() < 2 || !cause.node.empty()) return std::nullopt;
  return AttemptCause{
      .kind = CauseKind::kPortErrors,
      .text = fmt::format("ports of {} nodes counted errors, so no single node is at fault", with_errors.size())};
}

AttemptCause of_records(const EndFacts& facts) {
  const int status = facts.status.value_or(0);
  if (facts.event) {
    const AttemptCause cause = of_event(facts, *facts.event);
    const bool explains = cause.kind != CauseKind::kCommunication || !cause.node.empty();
    return facts.died_unnoticed && facts.first_gone && !explains ? *facts.first_gone : cause;
  }
  if (facts.first_gone) return *facts.first_gone;
  if (!facts.ranks_seen && !kind_of_status(status))
    return {.kind = CauseKind::kNotStarted,
            .text = fmt::format("the launcher ended with status {} before any rank had started", status)};
  return {.kind = kind_of_status(status).value_or(CauseKind::kUnknown),
          .text = fmt::format("the launcher ended with status {}", status)};
}

}  // namespace

AttemptCause cause_of(const EndFacts& facts, double now) {
  const int status = facts.status.value_or(0);
  const auto with_status = [&](AttemptCause cause) {
    cause.status = status;
    // The launcher exits with 128 + the signal of the first rank that a signal ended.
    const bool by_signal = cause.kind == CauseKind::kDeath && kind_of_status(status) == CauseKind::kDeath;
    if (by_signal && cause.text.find("signal ") == cause.text.npos)
      cause.text += fmt::format("; the launcher reports {}", signal_text(status - 128));
    return cause;
  };
  if (facts.status == 0) return with_status({.kind = CauseKind::kFinished, .text = "finished"});
  if (facts.stop_requested) return with_status({.kind = CauseKind::kDrained, .text = "stopped on request"});
  // A lost node explains everything else that was observed.
  for (const AttemptCause& finding : facts.findings)
    if (finding.kind == CauseKind::kNodeLost) return with_status(finding);
  if (facts.replacement) return with_status(*facts.replacement);
  for (const AttemptCause& finding : facts.findings)
    if (!is_suspicion(finding.kind) && (finding.time == 0 || now - finding.time <= kRecentSeconds))
      return with_status(finding);
  if (status == static_cast<int>(ExitCode::kDrained))
    return with_status({.kind = CauseKind::kDrainedItself, .text = "the ranks exited with status 75"});
  AttemptCause cause = of_records(facts);
  // The last step is in the flight recorder of the rank that is gone.
  if (cause.step < 0 && facts.first_gone && facts.first_gone->world_rank == cause.world_rank)
    cause.step = facts.first_gone->step;
  return with_status(recent_suspicion(facts, cause, now).value_or(cause));
}

std::optional<AttemptCause> gpu_finding(const std::string& node, const GpuSight& before, const GpuSight& now) {
  const auto finding = [&](CauseKind kind, const std::string& what) {
    return AttemptCause{.kind = kind, .node = node, .text = fmt::format("GPU {} on {}: {}", now.pci, node, what)};
  };
  constexpr std::array kActions{"no action", "a reset", "a reboot", "a drain of its peers", "a drain and a reset"};
  if (now.lost) return finding(CauseKind::kGpuSick, "it does not respond");
  if (now.recovery_action > 0)
    return finding(CauseKind::kGpuSick,
                   fmt::format("NVML requests {}", now.recovery_action < static_cast<int>(kActions.size())
                                                       ? kActions[static_cast<size_t>(now.recovery_action)]
                                                       : "an unknown action"));
  if (now.remap_failed && !before.remap_failed)
    return finding(CauseKind::kGpuSick, "a memory row could not be remapped: no spare rows are left");
  // The new XIDs are at the end of the list, as many as the counter has grown by; all are new if the agent was
  // restarted.
  const int64_t known = before.num_xids <= now.num_xids ? before.num_xids : 0;
  const auto fresh =
      static_cast<size_t>(std::min<int64_t>(now.num_xids - known, static_cast<int64_t>(now.xids.size())));
  const std::span<const int> xids(now.xids.end() - static_cast<int64_t>(fresh), now.xids.end());
  const auto first_of = [&](const auto& kinds) {
    return std::find_if(xids.begin(), xids.end(), [&](int xid) { return one_of(xid, kinds); });
  };
  if (const auto xid = first_of(kSickXids); xid != xids.end())
    return finding(CauseKind::kGpuSick, fmt::format("XID {}", *xid));
  if (const auto xid = first_of(kFaultXids); xid != xids.end())
    return finding(CauseKind::kGpuFault, fmt::format("XID {}", *xid));
  if (now.ecc_errors > before.ecc_errors) return finding(CauseKind::kGpuFault, "uncorrectable memory errors occurred");
  if (const auto xid = first_of(kSuspectXids); xid != xids.end())
    return finding(CauseKind::kGpuSuspect, fmt::format("XID {}", *xid));
  if (now.nvlinks_up < before.nvlinks_up) return finding(CauseKind::kGpuSuspect, "an NVLink went down");
  if (now.nvlink_recoveries > before.nvlink_recoveries)
    return finding(CauseKind::kGpuSuspect, "an NVLink was retrained");
  return std::nullopt;
}

}  // namespace tri
