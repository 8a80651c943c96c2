// What the driver sees of an attempt that goes on: its ranks, the nodes' hardware, ranks that are slow, and spares.
#include <algorithm>
#include <utility>

#include "io/base/log.h"
#include "lib/supervise/supervisor.h"

namespace tri {
namespace {

constexpr double kLookSeconds = 30;  // between two readings of the book while an attempt goes on
// A node that pulls its container's image has no ranks for minutes. It stays below the ranks' own deadline in MPI's
// start.
constexpr double kImageFactor = 4;
// In MPI's start: a rank spins that uses so much of a core, where others use so many times less.
constexpr double kSpins = 0.25, kSleeps = 4;

}  // namespace

void Supervisor::watch_ranks(const std::string& name, Node& node, double now) {
  if (node.report.attempt != current_.attempt) return;
  using Since = std::map<int, Node::RankSince>;
  const Since stopped = std::exchange(node.stopped, {}), gone = std::exchange(node.gone, {});
  for (const RankSight& rank : node.report.ranks) {
    facts_.ranks_seen |= rank.has_box;
    current_.step = std::max(current_.step, rank.step);
    const auto note = [&](const Since& before, Since& after, bool holds) {
      const auto known = before.find(rank.process);
      if (holds) after[rank.process] = {rank.world_rank, known == before.end() ? now : known->second.since};
    };
    note(stopped, node.stopped, rank.state == ProcessState::kStopped);
    note(gone, node.gone, rank.state == ProcessState::kGone && !rank.ended);
    if (rank.state == ProcessState::kGone && !rank.ended && !facts_.first_gone)
      facts_.first_gone = AttemptCause{.kind = CauseKind::kDeath,
                                       .node = name,
                                       .world_rank = rank.world_rank,
                                       .text = fmt::format("rank {} on {} is gone: process {} has ended without a word",
                                                           rank.world_rank, name, rank.process),
                                       .step = rank.step};
  }
}

// Which nodes are behind while ranks begin: one with a rank that has no box, where any has one; and one with fewer
// processes than its share, where any other has all of its. Once ranks load, all have begun, also those without a box.
void Supervisor::watch_beginning(double now) {
  const auto share = static_cast<size_t>(setup_.ranks_per_node);
  bool over = false, any_box = false, any_whole = false;
  for (const std::string& name : current_.nodes) {
    const auto& ranks = nodes_.at(name).report.ranks;
    for (const RankSight& rank : ranks) {
      any_box |= rank.has_box;
      over |= rank.has_box && rank.phase != RunPhase::kSetup;
    }
    any_whole |= share > 0 && ranks.size() == share;
    over |= share > 0 && ranks.size() > share;  // the launcher spreads them otherwise
  }
  for (const std::string& name : current_.nodes) {
    Node& node = nodes_.at(name);
    const auto& ranks = node.report.ranks;
    const bool waits = any_box && std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return !r.has_box; });
    const bool misses = any_whole && ranks.size() < share;
    const bool few = misses && !waits;
    if (over || (!waits && !misses))
      node.behind = 0;
    else if (node.behind == 0 || node.few != few)
      node.behind = now;
    node.few = few;
  }
}

// A node is named where no other is behind.
std::optional<AttemptCause> Supervisor::late_beginning(double now) const {
  AttemptCause late{.kind = CauseKind::kHang};
  int count = 0, num_few = 0;
  bool overdue = false;
  for (const std::string& name : current_.nodes) {
    const Node& node = nodes_.at(name);
    if (node.behind == 0) continue;
    const double limit = thresholds_.begin_seconds * (node.few ? kImageFactor : 1);
    overdue |= limit > 0 && now - node.behind > limit;
    late.node = name;
    ++count;
    num_few += node.few;
    for (const RankSight& rank : node.report.ranks)
      if (!rank.has_box) late.world_rank = rank.world_rank;
  }
  if (!overdue) return std::nullopt;
  if (num_few == count) {
    const std::string who = count > 1 ? fmt::format("{} nodes", count) : late.node;
    return AttemptCause{.kind = CauseKind::kSlowStart,
                        .node = count > 1 ? "" : late.node,
                        .text = fmt::format("ranks on {} are not started, and those of other nodes are", who)};
  }
  if (count > 1) return AttemptCause{.kind = CauseKind::kHangOfProgram, .text = "ranks of several nodes do not begin"};
  late.text = fmt::format("{} on {} does not begin, and others have",
                          late.world_rank < 0 ? "a rank" : fmt::format("rank {}", late.world_rank), late.node);
  return late;
}

// While no rank has a box all of them are before MPI's start, in it, or at the config. Who waits in MPI's start sleeps;
// who waits in an exchange after it computes, for a rank that sleeps perhaps. So a rank is named where it alone
// computes, and at least two others sleep, or those of its own node.
std::optional<AttemptCause> Supervisor::spinning_at_start(double now) {
  const double window = now - spin_since_;
  if (thresholds_.begin_seconds <= 0 || window < thresholds_.begin_seconds) return std::nullopt;
  struct Busy {
    double share = 0;  // of a core
    std::string node;
    RankSight rank;
  };
  std::vector<Busy> ranks;
  std::map<std::pair<std::string, int>, double> cpu;
  for (const std::string& name : current_.nodes)
    for (const RankSight& rank : nodes_.at(name).report.ranks) {
      if (rank.has_box) return std::nullopt;
      const std::pair process(name, rank.process);
      cpu[process] = rank.cpu_seconds;
      ranks.push_back({(rank.cpu_seconds - cpu_before_[process]) / window, name, rank});
    }
  cpu_before_ = std::move(cpu);
  spin_since_ = now;
  const auto busier = [](const Busy& a, const Busy& b) { return a.share < b.share; };
  const auto most = std::max_element(ranks.begin(), ranks.end(), busier);
  if (most == ranks.end() || most->share < kSpins) return std::nullopt;
  const auto sleeping =
      std::count_if(ranks.begin(), ranks.end(), [&](const Busy& rank) { return rank.share <= most->share / kSleeps; });
  const bool alone = current_.nodes.size() == 1;
  if (sleeping + 1 < std::ssize(ranks) || sleeping < (alone ? 1 : 2)) return std::nullopt;
  if (book_.has_begun(current_.attempt)) return std::nullopt;  // its ranks train, without boxes
  return AttemptCause{
      .kind = CauseKind::kHang,
      .node = most->node,
      .world_rank = most->rank.world_rank,
      .text = fmt::format("rank {} on {} (process {}) has computed for {:.0f} of {:.0f} s before or in "
                          "MPI's start, and others wait",
                          most->rank.world_rank, most->node, most->rank.process, most->share * window, window)};
}

// Of an attempt that is under way, or has just ended.
void Supervisor::watch_failure(const AgentReport& report) {
  if (!report.failure || report.failure->attempt != current_.attempt) return;
  if (!first_failed_ || is_before(*report.failure, first_failed_->second))
    first_failed_ = {report.host, *report.failure};
}

void Supervisor::watch_hardware(const std::string& name, Node& node, double now) {
  const bool silent = node.report.gpu_age > kGpuSilentSeconds;  // what is told of them is not new
  if (silent)
    found({.kind = CauseKind::kGpuSuspect,
           .node = name,
           .text = fmt::format("the GPUs' driver on {} does not answer", name)},
          now);
  for (const GpuSight& gpu : node.report.gpus) {
    if (silent) break;
    // Of one that is seen for the first time, all XIDs are new: the agent has counted them since it began.
    GpuSight unknown = gpu;
    unknown.num_xids = 0;
    GpuSight& before = node.gpus_before.try_emplace(gpu.pci, std::move(unknown)).first->second;
    if (const auto finding = gpu_finding(name, before, gpu)) found(*finding, now);
    before = gpu;
  }
  // Two changes of a carrier are one flap. A count that falls is that of a driver that was loaded anew.
  for (const PortSight& port : node.report.ports) {
    int64_t& known = node.changes.try_emplace(port.name, port.changes).first->second;
    known = std::min(known, port.changes);
    for (; known + 2 <= port.changes; known += 2)
      if (is_used(node, port)) node.flaps.push_back(now);
  }
  watch_port_errors(name, node, now);
  std::erase_if(node.flaps, [&](double time) { return now - time > thresholds_.flap_seconds; });
  if (node.flaps.size() < 2) return;
  found({.kind = CauseKind::kPortFlaps,
         .node = name,
         .text = fmt::format("a port of {} has lost its link twice within {:g} s", name, thresholds_.flap_seconds)},
        now);
  node.flaps.clear();
}

// Whether the attempt's transfers go through this port: it has moved a fair part of what the node's busiest port has
// moved since the attempt began. Ports of management networks flap as well, which disturbs nothing; an attempt on one
// node uses none.
bool Supervisor::is_used(const Node& node, const PortSight& port) const {
  constexpr double kFairPart = 0.05;
  constexpr int64_t kLeast = 1 << 20;  // bytes: more than reports to the driver make in minutes
  const auto moved = [&](const PortSight& p) {
    const auto before = node.bytes_before.find(p.name);
    const int64_t bytes = p.received + p.sent, known = before == node.bytes_before.end() ? 0 : before->second;
    return bytes >= known ? bytes - known : bytes;  // a count that falls is that of a driver that was loaded again
  };
  int64_t most = 0;
  for (const PortSight& other : node.report.ports) most = std::max(most, moved(other));
  const int64_t own = moved(port);
  return current_.nodes.size() > 1 && own >= kLeast &&
         static_cast<double>(own) >= kFairPart * static_cast<double>(most);
}

// Errors of the ports in use within the time in which flaps count; a count that falls is that of a driver that was
// loaded again.
void Supervisor::watch_port_errors(const std::string& name, Node& node, double now) {
  for (const PortSight& port : node.report.ports) {
    int64_t& known = node.errors.try_emplace(port.name, port.errors).first->second;
    const int64_t more = port.errors - std::exchange(known, port.errors);
    if (more > 0 && is_used(node, port)) node.error_times.emplace_back(now, more);
  }
  std::erase_if(node.error_times, [&](const auto& error) { return now - error.first > thresholds_.flap_seconds; });
  int64_t sum = 0;
  for (const auto& [time, count] : node.error_times) sum += count;
  if (thresholds_.port_errors <= 0 || static_cast<double>(sum) < thresholds_.port_errors) return;
  found({.kind = CauseKind::kPortErrors,
         .node = name,
         .text = fmt::format("ports of {} count {:g} errors or more within {:g} s", name, thresholds_.port_errors,
                             thresholds_.flap_seconds)},
        now);
}

// The first of a kind stands where it was, so that the first cause wins; seen again, it is younger.
void Supervisor::found(AttemptCause finding, double now) {
  finding.time = now;
  const auto at = std::find_if(facts_.findings.begin(), facts_.findings.end(),
                               [&](const AttemptCause& f) { return f.text == finding.text; });
  if (at != facts_.findings.end())
    at->time = now;
  else if (finding.kind != CauseKind::kStraggler)  // which brings no attempt to its end
    facts_.findings.push_back(finding);
  const bool is_sure = finding.kind == CauseKind::kGpuSick || finding.kind == CauseKind::kPortFlaps ||
                       finding.kind == CauseKind::kStraggler;
  if (phase_ != Phase::kRun || facts_.relief || asked_to_stop_) return;
  const Decision decision = is_sure ? decide_at_work_now(finding, now)
                                    : Decision{.action = Response::kReport, .why = "it counts if the attempt fails"};
  if (decision.action == Response::kRelieve) {
    facts_.relief = finding;
    relieved_ = now;
  } else if (!reported_.insert(finding.text).second) {
    return;
  }
  log_warn("supervise: {}: {}: {}", finding.text, enum_name(decision.action), decision.why);
  book_.append({.kind = RunEventKind::kDecision,
                .host = finding.node,
                .text = finding.text + ": " + decision.why,
                .fields = {{"action", std::string(enum_name(decision.action))},
                           {"cause", std::string(enum_name(finding.kind))}}},
               current_.attempt);
}

Decision Supervisor::decide_at_work_now(const AttemptCause& finding, double now) const {
  return decide_at_work({.attempts = history_.attempts,
                         .nodes_needed = setup_.nodes_needed,
                         .nodes_usable = static_cast<int>(usable(now).size()),
                         .thresholds = thresholds_},
                        finding, wall_);
}

// The trainer measures who is slower than the ranks that do the same work, and says so in the book.
void Supervisor::watch_stragglers(double now) {
  if (now - looked_ < kLookSeconds) return;
  looked_ = now;
  for (const RunEvent& event : book_.stragglers(current_.attempt))
    if (const std::string node = node_of_host(event.host); !node.empty())
      found({.kind = CauseKind::kStraggler, .node = node, .world_rank = event.world_rank, .text = event.text}, now);
}

// A spare node that is lost is to be known before it is needed.
void Supervisor::watch_spares(double now) {
  for (const std::string& name : usable(now))
    if (Node& node = nodes_.at(name); node.number != current_.number && is_lost(name, node, now) && !is_cut_off(now))
      exclude(name, "its agent does not answer", now);
}

// A loss that was not finite and has not come again: the node's fault, for the next choice of nodes.
void Supervisor::watch_step(double now) {
  const auto passing =
      decide_in_passing({.attempts = history_.attempts, .thresholds = thresholds_, .job = setup_.job}, current_.step);
  if (passing && !excluded(passing->node)) {
    const auto known = std::any_of(history_.exclusions.begin(), history_.exclusions.end(),
                                   [&](const Exclusion& e) { return e.node == passing->node; });
    if (!known) exclude(passing->node, passing->why, now);
  }
}

}  // namespace tri
