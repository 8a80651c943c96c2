#include "lib/supervise/decisions.h"

#include <algorithm>
#include <array>

#include "io/base/format.h"

namespace tri {
namespace {

// Attempts without progress whose ranks did not start on several nodes: this many count as one, because pulling images
// ends eventually.
constexpr int kSlowStarts = 4;

const PastAttempt& last_of(const Situation& s) { return s.attempts.back(); }

bool is_fault_of_a_rank(CauseKind kind) {
  return kind == CauseKind::kDeath || kind == CauseKind::kDevice || kind == CauseKind::kGpuFault;
}

// Counts the last attempt's kind of fault on its node within the remembered hours, the last attempt included.
int times_on_node(const Situation& s, bool (*alike)(CauseKind)) {
  const PastAttempt& last = last_of(s);
  return static_cast<int>(std::count_if(s.attempts.begin(), s.attempts.end(), [&](const PastAttempt& a) {
    return alike(a.cause.kind) && a.cause.node == last.cause.node &&
           last.ended - a.ended <= s.thresholds.repeat_hours * 3600;
  }));
}

// Whether both attempts report the same step in which they failed; the last step seen may be an earlier one.
bool fail_at_one_step(const PastAttempt& a, const PastAttempt& b) {
  return a.cause.step >= 0 && a.cause.step == b.cause.step;
}

// Whether the same rank has failed in the same way on two nodes. Then the program or the data is at fault, not a node.
bool follows_the_rank(const Situation& s) {
  const PastAttempt& last = last_of(s);
  return last.cause.world_rank >= 0 && std::any_of(s.attempts.begin(), s.attempts.end(), [&](const PastAttempt& a) {
           return a.cause.kind == last.cause.kind && a.cause.world_rank == last.cause.world_rank &&
                  !a.cause.node.empty() && a.cause.node != last.cause.node && fail_at_one_step(a, last);
         });
}

Decision done(const Situation&) { return {.action = Response::kDone, .why = "the run is finished"}; }

Decision leave(const Situation& s) {
  return {.action = Response::kLeave,
          .status = static_cast<int>(ExitCode::kDrained),
          .why = last_of(s).cause.kind == CauseKind::kDrained ? "the run received a stop signal"
                                                              : "the ranks stopped without a stop signal"};
}

Decision retry(const Situation& s) {
  return {.action = Response::kRetry,
          .why = last_of(s).cause.node.empty() ? "no node is at fault" : "the fault may be transient"};
}

Decision stop(const Situation& s) {
  return {.action = Response::kStop,
          .status = last_of(s).cause.status,
          .why = "another attempt would fail in the same way"};
}

bool has_trained(const PastAttempt& attempt) {
  return attempt.step > attempt.from_step || attempt.checkpoint > attempt.from_step;
}

// Handles a file error before the first step. If it is on the only new node, while the nodes that have trained are
// present, the new node does not see the run's storage. If it is on another node, the file is at fault.
Decision file(const Situation& s) {
  const PastAttempt& last = last_of(s);
  std::vector<std::string> fresh = last.nodes;
  for (const PastAttempt& a : s.attempts)
    if (has_trained(a))
      std::erase_if(fresh, [&](const auto& node) { return std::count(a.nodes.begin(), a.nodes.end(), node) > 0; });
  if (fresh.size() != 1 || fresh.size() == last.nodes.size() || fresh.front() != last.cause.node) return stop(s);
  return {.action = Response::kExclude,
          .node = fresh.front(),
          .why = "the run has trained without this node, so its access to storage is at fault"};
}

Decision exclude(const Situation& s) {
  const AttemptCause& cause = last_of(s).cause;
  if (cause.node.empty()) return retry(s);
  return {.action = Response::kExclude, .node = cause.node, .why = "the node is at fault"};
}

// If the loss is not finite twice at the same step, the run itself is the cause.
Decision not_finite(const Situation& s) {
  const PastAttempt& last = last_of(s);
  const bool repeats = std::any_of(s.attempts.begin(), s.attempts.end() - 1, [&](const PastAttempt& a) {
    return a.cause.kind == CauseKind::kNotFinite && fail_at_one_step(a, last);
  });
  if (repeats)
    return {.action = Response::kStop,
            .status = static_cast<int>(ExitCode::kNotFinite),
            .why = fmt::format("loss or gradients were not finite twice at step {}", last.cause.step)};
  return {.action = Response::kRetry,
          .why = "a device may have computed a wrong result; if the step fails again, the run itself is at fault"};
}

// The first failure may be transient. After a second failure on the same node within a day, the doctor examines it, and
// it is excluded unless found healthy. After the third it is excluded in any case.
Decision fault_of_rank(const Situation& s) {
  const AttemptCause& cause = last_of(s).cause;
  if (cause.node.empty()) return retry(s);
  if (follows_the_rank(s))
    return {.action = Response::kRetry,
            .why = "the same rank failed in the same way on another node, so no node is at fault"};
  const int times = times_on_node(s, is_fault_of_a_rank);
  if (times < 2) return {.action = Response::kRetry, .why = "it is the first such fault on this node"};
  const auto count = fmt::format("{} such faults on {}", times, cause.node);
  if (times > 2) return {.action = Response::kExclude, .node = cause.node, .why = count};
  if (!s.diagnosis) return {.action = Response::kDoctor, .node = cause.node, .why = count};
  if (*s.diagnosis == Diagnosis::kHealthy)
    return {.action = Response::kRetry, .why = count + ", but the doctor finds the node healthy"};
  return {.action = Response::kExclude, .node = cause.node, .why = count};
}

bool is_hang(CauseKind kind) { return kind == CauseKind::kHang; }

// The doctor examines the node at once. It is excluded if the doctor finds it bad or if it causes a second hang.
Decision hang(const Situation& s) {
  const AttemptCause& cause = last_of(s).cause;
  if (cause.node.empty()) return retry(s);
  if (times_on_node(s, is_hang) > 1)
    return {.action = Response::kExclude, .node = cause.node, .why = "the node has blocked the run twice"};
  if (!s.diagnosis) return {.action = Response::kDoctor, .node = cause.node, .why = "the node has blocked the run"};
  if (*s.diagnosis == Diagnosis::kBad)
    return {.action = Response::kExclude,
            .node = cause.node,
            .why = "the node has blocked the run, and the doctor finds it bad"};
  return {.action = Response::kRetry, .why = "the node has blocked the run only once"};
}

// Pulling a container's image looks the same, so the first time is not a fault.
bool is_slow_start(CauseKind kind) { return kind == CauseKind::kSlowStart; }

Decision slow_start(const Situation& s) {
  const AttemptCause& cause = last_of(s).cause;
  if (cause.node.empty() || times_on_node(s, is_slow_start) < 2) return retry(s);
  return {.action = Response::kExclude, .node = cause.node, .why = "ranks failed to start on the node twice"};
}

// The node is examined at once. It is excluded unless the doctor finds it healthy, or has failed to answer only once.
bool is_suspect(CauseKind kind) { return kind == CauseKind::kGpuSuspect || kind == CauseKind::kPortErrors; }

Decision suspect(const Situation& s) {
  const AttemptCause& cause = last_of(s).cause;
  if (cause.node.empty()) return retry(s);
  if (!s.diagnosis) return {.action = Response::kDoctor, .node = cause.node, .why = "the node is suspect"};
  if (*s.diagnosis == Diagnosis::kHealthy)
    return {.action = Response::kRetry, .why = "the doctor finds the node healthy"};
  if (*s.diagnosis == Diagnosis::kUnknown && times_on_node(s, is_suspect) < 2)
    return {.action = Response::kRetry,
            .why = "the doctor could not judge the node, and it is the first such fault on it"};
  return {.action = Response::kExclude, .node = cause.node, .why = "the doctor does not find the node healthy"};
}

// A spare replaces the node if there is one; otherwise it stays, since a slow node is better than none.
Decision straggler(const Situation& s) {
  const AttemptCause& cause = last_of(s).cause;
  if (cause.node.empty()) return retry(s);
  if (s.nodes_usable - 1 < s.nodes_needed)
    return {.action = Response::kRetry, .why = "the node is slow, but there is no spare node"};
  if (!s.diagnosis) return {.action = Response::kDoctor, .node = cause.node, .why = "the node is slow"};
  if (*s.diagnosis == Diagnosis::kSuspect || *s.diagnosis == Diagnosis::kBad)
    return {.action = Response::kExclude,
            .node = cause.node,
            .why = "the node is slow, and the doctor finds a fault in it"};
  return {.action = Response::kRetry, .why = "the node is slow, but the doctor finds no fault in it"};
}

using Row = Decision (*)(const Situation&);

// Maps a cause to a response. decide() then limits the numbers of attempts and of nodes.
constexpr std::array kTable{
    std::pair{CauseKind::kFinished, Row{done}},
    std::pair{CauseKind::kDrained, Row{leave}},
    std::pair{CauseKind::kDrainedItself, Row{leave}},
    std::pair{CauseKind::kUsage, Row{stop}},
    std::pair{CauseKind::kFile, Row{file}},
    std::pair{CauseKind::kNotFinite, Row{not_finite}},
    std::pair{CauseKind::kDeath, Row{fault_of_rank}},
    std::pair{CauseKind::kDevice, Row{fault_of_rank}},
    std::pair{CauseKind::kGpuFault, Row{fault_of_rank}},
    std::pair{CauseKind::kGpuSuspect, Row{suspect}},
    std::pair{CauseKind::kPortErrors, Row{suspect}},
    std::pair{CauseKind::kGpuSick, Row{exclude}},
    std::pair{CauseKind::kPortFlaps, Row{exclude}},
    std::pair{CauseKind::kNodeLost, Row{exclude}},
    std::pair{CauseKind::kUnkillable, Row{exclude}},
    std::pair{CauseKind::kStraggler, Row{straggler}},
    std::pair{CauseKind::kHang, Row{hang}},
    std::pair{CauseKind::kHangOfProgram, Row{retry}},
    std::pair{CauseKind::kCommunication, Row{retry}},
    std::pair{CauseKind::kNotStarted, Row{retry}},
    std::pair{CauseKind::kSlowStart, Row{slow_start}},
    std::pair{CauseKind::kUnknown, Row{retry}},
};
static_assert(kTable.size() == EnumNames<CauseKind>::table.size());

Decision row_of(const Situation& s) {
  for (const auto& [kind, row] : kTable)
    if (kind == last_of(s).cause.kind) return row(s);
  return retry(s);
}

}  // namespace

Diagnosis diagnosis_of(int doctor_status) {
  switch (doctor_status) {
    case 0:
      return Diagnosis::kHealthy;
    case 40:
      return Diagnosis::kSuspect;
    case 41:
      return Diagnosis::kBad;
    default:
      return Diagnosis::kUnknown;
  }
}

int attempts_without_checkpoint(std::span<const PastAttempt> attempts) {
  if (attempts.empty()) return 0;
  int count = 0, num_slow = 0;
  // An attempt whose driver was killed could not report its newest checkpoint, but the next attempt began from it.
  const int64_t newest = attempts.back().checkpoint;
  int64_t resumed = 0;  // by the attempts after `a`, from the checkpoints that these had made in memory
  for (auto a = attempts.rbegin(); a != attempts.rend(); ++a) {
    if (resumed > std::max(a->resumed, a->from_step) && a->resumed > 0) break;
    resumed = std::max(resumed, a->resumed);
    if (a->checkpoint > a->from_step || a->from_step < newest || a->job != attempts.back().job) break;
    const bool requested = a->cause.kind == CauseKind::kDrained || a->cause.kind == CauseKind::kFinished;
    const bool slow = is_slow_start(a->cause.kind) && a->cause.node.empty();
    num_slow += slow;
    count += a->ended > 0 && !requested && !slow;
  }
  return count + num_slow / kSlowStarts;
}

Decision decide(const Situation& s) {
  TRI_REQUIRE(!s.attempts.empty(), "a decision requires at least one attempt");
  Decision decision = row_of(s);
  if (decision.action == Response::kDoctor) return decision;
  const bool goes_on = decision.action == Response::kRetry || decision.action == Response::kExclude;
  if (!goes_on) return decision;
  const int without_progress = attempts_without_checkpoint(s.attempts);
  const int usable = s.nodes_usable - (decision.action == Response::kExclude ? 1 : 0);
  if (without_progress >= s.thresholds.attempts) {
    decision.action = Response::kStop;
    decision.status = kNoProgressStatus;
    decision.why = fmt::format("{} made no newer checkpoint; the last one: {}",
                               counted(without_progress, "consecutive attempt"), decision.why);
  } else if (usable < s.nodes_needed) {
    decision.action = Response::kSuccessor;
    decision.status = static_cast<int>(ExitCode::kDrained);
    decision.why += fmt::format("; {} of the allocation's nodes are left, but {} are needed", usable, s.nodes_needed);
  }
  return decision;
}

Decision decide_at_work(const Situation& s, const AttemptCause& finding, double now) {
  Decision decision{.action = Response::kReport, .node = finding.node};
  const bool examined = std::any_of(s.attempts.begin(), s.attempts.end(), [&](const PastAttempt& a) {
    return a.cause.kind == CauseKind::kStraggler && a.cause.node == finding.node &&
           now - a.ended <= s.thresholds.repeat_hours * 3600;
  });
  if (s.nodes_usable - 1 < s.nodes_needed) {
    decision.why = "there is no spare node to replace it";
  } else if (finding.kind == CauseKind::kStraggler && examined) {
    decision.why = fmt::format("the doctor has examined it within the last {:g} h", s.thresholds.repeat_hours);
  } else {
    decision.action = Response::kReplace;
    decision.why = "a spare node can replace it";
  }
  return decision;
}

std::vector<Decision> decide_before_start(std::span<const std::pair<std::string, Diagnosis>> nodes, int nodes_needed,
                                          int nodes_usable) {
  const auto num_bad =
      std::count_if(nodes.begin(), nodes.end(), [](const auto& node) { return node.second == Diagnosis::kBad; });
  const bool most = 2 * static_cast<size_t>(num_bad) > nodes.size();
  std::vector<Decision> decisions;
  for (const auto& [node, diagnosis] : nodes) {
    Decision decision{.action = Response::kReport, .node = node};
    if (diagnosis == Diagnosis::kSuspect) {
      decision.why = "the doctor suspects it";
    } else if (diagnosis != Diagnosis::kBad) {
      continue;
    } else if (most) {
      decision.why =
          fmt::format("the doctor finds {} of {} nodes bad, so no single node is at fault", num_bad, nodes.size());
    } else if (nodes_usable <= nodes_needed) {
      decision.why = "the doctor finds it bad, but there is no spare node to replace it";
    } else {
      decision.action = Response::kExclude;
      decision.why = "the doctor finds it bad";
      --nodes_usable;
    }
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

std::optional<Decision> decide_in_passing(const Situation& s, int64_t step) {
  int64_t passed = 0;  // by later attempts
  const auto at_the_step_of = [&](const PastAttempt& last) {
    return std::count_if(s.attempts.begin(), s.attempts.end(), [&](const PastAttempt& a) {
      return a.cause.kind == CauseKind::kNotFinite && fail_at_one_step(a, last);
    });
  };
  for (auto a = s.attempts.rbegin(); a != s.attempts.rend(); ++a) {
    if (a->cause.kind != CauseKind::kNotFinite) {
      passed = std::max(passed, a->step);
      continue;
    }
    // If a later attempt has passed the step, the decision was already made: a node whose exclusion has ended stays
    // usable.
    const int64_t failed = a->cause.step;
    if (a->cause.node.empty() || failed < 0 || step <= failed || passed > failed) return std::nullopt;
    // Otherwise the run itself may be the cause, and the user may have fixed it before submitting again.
    if (at_the_step_of(*a) > 1 || a->job != s.job) return std::nullopt;
    return Decision{
        .action = Response::kExclude,
        .node = a->cause.node,
        .why = fmt::format("loss or gradients were not finite at step {}, but are finite without this node or "
                           "on the second try, so a device has computed a wrong result",
                           failed)};
  }
  return std::nullopt;
}

}  // namespace tri
