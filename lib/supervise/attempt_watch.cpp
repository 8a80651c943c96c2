#include "lib/supervise/attempt_watch.h"

#include <algorithm>
#include <utility>

namespace tri {
namespace {

// A node that pulls its container's image has no ranks for minutes. The result stays below the ranks' own timeout for
// MPI's start-up.
constexpr double kImageFactor = 4;
// During MPI's start-up a rank counts as spinning if it uses this share of a core, and the other ranks use at most 1 /
// kSleeps of what it uses.
constexpr double kSpins = 0.25, kSleeps = 4;

// Returns how far a counter modulo 2^64 has grown. A negative result means that it was reset, for example by its
// driver.
int64_t growth(int64_t before, int64_t now) {
  return static_cast<int64_t>(static_cast<uint64_t>(now) - static_cast<uint64_t>(before));
}
constexpr int64_t kUnreadable = -1;  // value of a counter

// Returns the bytes that the port has transferred; none if its driver does not report them.
std::optional<int64_t> bytes_of(const PortSight& port) {
  if (port.received == kUnreadable || port.sent == kUnreadable) return std::nullopt;
  return static_cast<int64_t>(static_cast<uint64_t>(port.received) + static_cast<uint64_t>(port.sent));
}

}  // namespace

void AttemptWatch::begin(PastAttempt attempt, const NodePool& pool, double now) {
  attempt_ = std::move(attempt);
  began_ = spin_since_ = now;
  facts_ = {};
  first_failed_.reset();
  cpu_before_.clear();
  reported_.clear();
  for (const std::string& name : attempt_.nodes) {
    NodeSight& sight = nodes_[name];
    sight.attempt = attempt_.number;
    sight.stopped.clear();
    sight.gone.clear();
    sight.behind = 0;
    sight.few = false;
    sight.gpus.clear();
    sight.bytes_before.clear();
    const AgentReport& report = pool.at(name).report;
    for (const GpuSight& gpu : report.gpus) sight.gpus[gpu.pci] = gpu;
    for (const PortSight& port : report.ports)
      if (const auto bytes = bytes_of(port)) sight.bytes_before[port.name] = *bytes;
  }
}

bool AttemptWatch::uses(const std::string& node) const {
  const auto at = nodes_.find(node);
  return at != nodes_.end() && at->second.attempt == attempt_.number;
}

std::vector<AttemptCause> AttemptWatch::take(const AgentReport& report, const Thresholds& thresholds, double now) {
  if (report.watched == attempt_.attempt) attempt_.step = std::max(attempt_.step, report.step);
  NodeSight& sight = nodes_.at(report.node);
  std::vector<AttemptCause> found;
  watch_gpus(report, sight, found);
  watch_ports(report, sight, thresholds, now, found);
  if (report.failure && report.failure->attempt == attempt_.attempt &&
      (!first_failed_ || is_before(*report.failure, first_failed_->second)))
    first_failed_ = {report.host, *report.failure};
  return found;
}

void AttemptWatch::take_ranks(const AgentReport& report, double now) {
  if (report.attempt != attempt_.attempt) return;
  NodeSight& sight = nodes_.at(report.node);
  const RanksSince stopped = std::exchange(sight.stopped, {}), gone = std::exchange(sight.gone, {});
  for (const RankSight& rank : report.ranks) {
    facts_.ranks_seen |= rank.has_record;
    attempt_.step = std::max(attempt_.step, rank.step);
    const auto note = [&](const RanksSince& before, RanksSince& after, bool holds) {
      const auto known = before.find(rank.process);
      if (holds) after[rank.process] = {rank.world_rank, known == before.end() ? now : known->second.since};
    };
    const bool is_gone = rank.state == ProcessState::kGone && !rank.ended;
    note(stopped, sight.stopped, rank.state == ProcessState::kStopped);
    note(gone, sight.gone, is_gone);
    if (is_gone && !facts_.first_gone)
      facts_.first_gone =
          AttemptCause{.kind = CauseKind::kDeath,
                       .node = report.node,
                       .world_rank = rank.world_rank,
                       .text = fmt::format("rank {} on {} has failed: process {} ended without an error message",
                                           rank.world_rank, report.node, rank.process),
                       .time = now,
                       .step = rank.step};
  }
}

bool AttemptWatch::must_end(const NodePool& pool, const Thresholds& thresholds, const std::function<bool()>& has_begun,
                            double now) {
  size_t num_ranks = 0, num_stopped = 0;
  for (const std::string& name : attempt_.nodes) {
    num_ranks += pool.at(name).report.ranks.size();
    num_stopped += nodes_.at(name).stopped.size();
  }
  const bool suspended = num_stopped == num_ranks;  // the whole job is suspended, which is not a fault
  for (const std::string& name : attempt_.nodes) {
    const NodeSight& sight = nodes_.at(name);
    const auto overdue = [&](const RanksSince& ranks, double limit) {
      return std::find_if(ranks.begin(), ranks.end(),
                          [&](const auto& rank) { return limit > 0 && now - rank.second.since > limit; });
    };
    // The first rank to die is read from events.jsonl, else from the order in which the ranks were seen gone.
    if (overdue(sight.gone, thresholds.gone_seconds) != sight.gone.end()) {
      facts_.died_unnoticed = true;
      return true;
    }
    const auto stopped = overdue(sight.stopped, thresholds.stopped_seconds);
    if (suspended || stopped == sight.stopped.end()) continue;
    const auto& [process, rank] = *stopped;
    const std::string process_name =
        rank.world_rank < 0 ? fmt::format("process {}", process) : fmt::format("rank {}", rank.world_rank);
    facts_.findings.push_back({.kind = CauseKind::kHang,
                               .node = name,
                               .world_rank = rank.world_rank,
                               .text = fmt::format("{} on {} is stopped by a signal", process_name, name)});
    return true;
  }
  watch_beginning(pool, now);
  auto late = late_beginning(pool, thresholds, now);
  if (!late) late = spinning_at_start(pool, thresholds, has_begun, now);
  if (late) facts_.findings.push_back(*late);
  return late.has_value();
}

// Records which nodes are late while ranks begin: a node with a rank without flight recorder, once any rank has one;
// and a node with fewer processes than its share, once any node has all of them. Once ranks load, all have begun.
void AttemptWatch::watch_beginning(const NodePool& pool, double now) {
  const auto share = static_cast<size_t>(ranks_per_node_);
  bool over = false, any_record = false, any_whole = false;
  for (const std::string& name : attempt_.nodes) {
    const auto& ranks = pool.at(name).report.ranks;
    for (const RankSight& rank : ranks) {
      any_record |= rank.has_record;
      over |= rank.has_record && rank.phase != RunPhase::kSetup;
    }
    any_whole |= share > 0 && ranks.size() == share;
    over |= share > 0 && ranks.size() > share;  // the launcher distributes them differently
  }
  for (const std::string& name : attempt_.nodes) {
    NodeSight& sight = nodes_.at(name);
    const auto& ranks = pool.at(name).report.ranks;
    const bool waits =
        any_record && std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return !r.has_record; });
    const bool misses = any_whole && ranks.size() < share;
    const bool few = misses && !waits;
    if (over || (!waits && !misses))
      sight.behind = 0;
    else if (sight.behind == 0 || sight.few != few)
      sight.behind = now;
    sight.few = few;
  }
}

// Names the node only if no other node is behind.
std::optional<AttemptCause> AttemptWatch::late_beginning(const NodePool& pool, const Thresholds& thresholds,
                                                         double now) const {
  AttemptCause late{.kind = CauseKind::kHang};
  int count = 0, num_few = 0;
  bool overdue = false;
  for (const std::string& name : attempt_.nodes) {
    const NodeSight& sight = nodes_.at(name);
    if (sight.behind == 0) continue;
    const double limit = thresholds.begin_seconds * (sight.few ? kImageFactor : 1);
    overdue |= limit > 0 && now - sight.behind > limit;
    late.node = name;
    ++count;
    num_few += sight.few;
    for (const RankSight& rank : pool.at(name).report.ranks)
      if (!rank.has_record) late.world_rank = rank.world_rank;
  }
  if (!overdue) return std::nullopt;
  if (num_few == count) {
    const std::string nodes = count > 1 ? fmt::format("{} nodes", count) : late.node;
    return AttemptCause{.kind = CauseKind::kSlowStart,
                        .node = count > 1 ? "" : late.node,
                        .text = fmt::format("the ranks on {} have not started, but those of other nodes have", nodes)};
  }
  if (count > 1)
    return AttemptCause{.kind = CauseKind::kHangOfProgram,
                        .text = "ranks on several nodes have not begun their set-up, but others have"};
  late.text = fmt::format("{} on {} has not begun its set-up, but others have",
                          late.world_rank < 0 ? "a rank" : fmt::format("rank {}", late.world_rank), late.node);
  return late;
}

// While no rank has a flight recorder, each rank is before MPI's start-up, in it, or reads the config. A rank that
// waits in MPI's start-up sleeps; one that waits in a later exchange uses the CPU, possibly for a rank that sleeps. So
// a rank is named only if it alone uses the CPU and at least two other ranks sleep (one, if the job has a single node).
std::optional<AttemptCause> AttemptWatch::spinning_at_start(const NodePool& pool, const Thresholds& thresholds,
                                                            const std::function<bool()>& has_begun, double now) {
  const double window = now - spin_since_;
  if (thresholds.begin_seconds <= 0 || window < thresholds.begin_seconds) return std::nullopt;
  struct Busy {
    double share = 0;  // of a core
    std::string node;
    RankSight rank;
  };
  std::vector<Busy> ranks;
  std::map<std::pair<std::string, int>, double> cpu;
  for (const std::string& name : attempt_.nodes)
    for (const RankSight& rank : pool.at(name).report.ranks) {
      if (rank.has_record) return std::nullopt;
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
  const bool alone = attempt_.nodes.size() == 1;
  if (sleeping + 1 < std::ssize(ranks) || sleeping < (alone ? 1 : 2)) return std::nullopt;
  if (has_begun()) return std::nullopt;  // its ranks train without flight recorders
  return AttemptCause{
      .kind = CauseKind::kHang,
      .node = most->node,
      .world_rank = most->rank.world_rank,
      .text = fmt::format("rank {} on {} (process {}) has used the CPU for {:.0f} of {:.0f} s before or during "
                          "MPI's start-up, while the other ranks wait",
                          most->rank.world_rank, most->node, most->rank.process, most->share * window, window)};
}

void AttemptWatch::watch_gpus(const AgentReport& report, NodeSight& sight, std::vector<AttemptCause>& found) const {
  if (report.gpu_age > kGpuSilentSeconds) {  // the reported figures are old
    found.push_back({.kind = CauseKind::kGpuSuspect,
                     .node = report.node,
                     .text = fmt::format("the GPU driver on {} does not respond", report.node)});
    return;
  }
  for (const GpuSight& gpu : report.gpus) {
    // All XIDs of a GPU seen for the first time are new, because the agent counts them from its start.
    GpuSight unknown = gpu;
    unknown.num_xids = 0;
    GpuSight& before = sight.gpus.try_emplace(gpu.pci, std::move(unknown)).first->second;
    if (const auto finding = gpu_finding(report.node, before, gpu)) found.push_back(*finding);
    before = gpu;
  }
}

// Two carrier changes are one flap. A count that decreases comes from a driver that was reloaded.
void AttemptWatch::watch_ports(const AgentReport& report, NodeSight& sight, const Thresholds& thresholds, double now,
                               std::vector<AttemptCause>& found) const {
  for (const PortSight& port : report.ports) {
    if (port.changes != kUnreadable) {
      int64_t& changes = sight.changes.try_emplace(port.name, port.changes).first->second;
      if (growth(changes, port.changes) < 0) changes = port.changes;
      for (; growth(changes, port.changes) >= 2; changes += 2)
        if (is_used(sight, report, port)) sight.flaps.push_back(now);
    }
    if (port.errors == kUnreadable) continue;
    int64_t& errors = sight.errors.try_emplace(port.name, port.errors).first->second;
    const int64_t more = growth(std::exchange(errors, port.errors), port.errors);
    if (more > 0 && is_used(sight, report, port)) sight.error_times.emplace_back(now, more);
  }
  const double window = thresholds.flap_seconds;
  std::erase_if(sight.flaps, [&](double time) { return now - time > window; });
  std::erase_if(sight.error_times, [&](const auto& error) { return now - error.first > window; });
  int64_t sum = 0;
  for (const auto& [time, count] : sight.error_times) sum += count;
  if (thresholds.port_errors > 0 && static_cast<double>(sum) >= thresholds.port_errors)
    found.push_back({.kind = CauseKind::kPortErrors,
                     .node = report.node,
                     .text = fmt::format("ports of {} counted at least {:g} errors within {:g} s", report.node,
                                         thresholds.port_errors, window)});
  if (sight.flaps.size() < 2) return;
  found.push_back({.kind = CauseKind::kPortFlaps,
                   .node = report.node,
                   .text = fmt::format("a port of {} lost its link twice within {:g} s", report.node, window)});
  sight.flaps.clear();
}

// Whether the attempt's transfers use this port: since the attempt began it has moved at least kFairPart of what the
// node's busiest port has moved. Ports of management networks also flap, which does no harm. An attempt on one node
// uses no port.
bool AttemptWatch::is_used(const NodeSight& sight, const AgentReport& report, const PortSight& port) const {
  constexpr double kFairPart = 0.05;
  constexpr int64_t kLeast = 1 << 20;  // bytes: more than reports to the driver amount to in minutes
  const auto moved = [&](const PortSight& p) {
    const auto bytes = bytes_of(p);
    if (!bytes) return int64_t{0};
    const auto before = sight.bytes_before.find(p.name);
    const int64_t moved = growth(before == sight.bytes_before.end() ? 0 : before->second, *bytes);
    return moved >= 0 ? moved : *bytes;
  };
  int64_t most = 0;
  for (const PortSight& other : report.ports) most = std::max(most, moved(other));
  const int64_t own = moved(port);
  return attempt_.nodes.size() > 1 && own >= kLeast &&
         static_cast<double>(own) >= kFairPart * static_cast<double>(most);
}

void AttemptWatch::add(AttemptCause finding) {
  const auto at = std::find_if(facts_.findings.begin(), facts_.findings.end(),
                               [&](const AttemptCause& f) { return f.text == finding.text; });
  if (at != facts_.findings.end())
    at->time = finding.time;
  else
    facts_.findings.push_back(std::move(finding));
}

void AttemptWatch::add_once(CauseKind kind, const std::string& node, const std::string& text) {
  const bool known = std::any_of(facts_.findings.begin(), facts_.findings.end(),
                                 [&](const AttemptCause& f) { return f.kind == kind && f.node == node; });
  if (!known) facts_.findings.push_back({.kind = kind, .node = node, .text = text});
}

std::optional<RunEvent> AttemptWatch::recorded_failure() const {
  const bool explains =
      first_failed_ && (first_failed_->second.status != static_cast<int>(ExitCode::kComm) || !facts_.first_gone);
  if (!explains) return std::nullopt;
  const auto& [host, failure] = *first_failed_;
  RunEvent event{.time = failure.time,
                 .kind = RunEventKind::kFailure,
                 .world_rank = failure.world_rank,
                 .host = host,
                 .text = failure.text,
                 .fields = {{"code", int64_t{failure.status}}, {"consequence", false}}};
  if (failure.step >= 0) event.fields["step"] = failure.step;
  return event;
}

std::string AttemptWatch::blind_node(const NodePool& pool) const {
  std::string blind;
  for (const std::string& name : attempt_.nodes) {
    if (pool.at(name).report.sees_run) continue;
    if (!blind.empty()) return "";
    blind = name;
  }
  return blind;
}

}  // namespace tri
