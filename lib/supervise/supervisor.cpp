#include "lib/supervise/supervisor.h"

#include <algorithm>
#include <utility>

#include "io/base/log.h"
#include "io/checkpoint/folder.h"

namespace tri {
namespace {

constexpr double kAskSeconds = 5;    // launcher and ranks have to leave when they are asked to
constexpr double kAloneSeconds = 3;  // ... a launcher whose ranks are gone, as srun that awaits a node without slurmd
// Without slurmd, in the agent's sight and in the driver's: a service that is started anew comes back within seconds.
constexpr double kDaemonSeconds = 5;
// Such a node is whole but for a service, which somebody starts again.
constexpr double kDaemonHours = 1;
// What a GPU has against it may show a moment after its rank has died.
constexpr double kLookSeconds = 2, kGpuLookSeconds = 1;
constexpr double kPulseSeconds = 10, kMaxDrainPause = 30, kRereadSeconds = 5;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Supervisor::Supervisor(Setup setup, Launcher& launcher, AgentLink& agents, RunBook& book)
    : setup_(std::move(setup)), launcher_(launcher), agents_(agents), book_(book) {
  for (const std::string& name : setup_.nodes) nodes_[name];
}

void Supervisor::enter(Phase phase, double now) {
  phase_ = phase;
  since_ = now;
}

void Supervisor::stop_requested(Moment moment) {
  const double now = moment.monotonic;
  wall_ = moment.wall;
  if (asked_to_stop_ || status_) return;
  asked_to_stop_ = true;
  log_info("supervise: asked to stop");
  if (phase_ != Phase::kRun && phase_ != Phase::kEnd) leave(static_cast<int>(ExitCode::kDrained), now);
}

void Supervisor::tick(Moment moment) {
  const double now = moment.monotonic;
  wall_ = moment.wall;
  if (phase_ == Phase::kOver) return;
  if (!begun_) {
    begun_ = true;
    since_ = now;
    thresholds_ = book_.thresholds();
    history_ = book_.history(wall_);
    std::vector<std::string> all = usable(now);
    for (auto& [name, node] : nodes_) node.asked = node.probed = now;
    if (!all.empty()) launcher_.start_agents(all);
    order_all(OrderKind::kEnd);  // what earlier attempts have left behind
  }
  for (const std::string& name : launcher_.failed_agents())
    if (const auto at = nodes_.find(name); at != nodes_.end()) ++at->second.failed;
  if (now - read_ > kRereadSeconds) {
    read_ = now;
    thresholds_ = book_.thresholds();
  }
  if (now - pulsed_ > kPulseSeconds) {
    pulsed_ = now;
    for (const auto& [name, node] : nodes_) agents_.send(name, {});
  }
  switch (phase_) {
    case Phase::kGather:
      gather(now);
      break;
    case Phase::kExamine:
      await_examination(now);
      break;
    case Phase::kRun:
      run(now);
      break;
    case Phase::kEnd:
      finish_ending(now);
      break;
    case Phase::kDoctor:
      await_doctor(now);
      break;
    case Phase::kOver:
      break;
  }
}

// Nodes whose slurmd is gone, also those that this gathering has left out for it. Several at once are nobody's fault:
// an upgrade, or Slurm itself.
int Supervisor::num_without_daemon(double now) const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& known) {
    const auto& [name, node] = known;
    return lacks_daemon(node, now) && (!excluded(name) || node.excluded >= since_);
  }));
}

bool Supervisor::lacks_daemon(const Node& node, double now) const {
  return !node.lost && has_come(node) && now - node.heard < thresholds_.silent_seconds && node.report.daemon_gone > 0;
}

// Usable nodes in the order in which they are taken: where several lack their slurmd, those come last.
std::vector<std::string> Supervisor::preferred(double now) const {
  std::vector<std::string> names = usable(now);
  if (num_without_daemon(now) < 2 || now - since_ < kDaemonSeconds) return names;
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& name) { return !lacks_daemon(nodes_.at(name), now); });
  return names;
}

// A node that is wanted has no slurmd. One alone is left out for a while, soon where a spare takes its place; of
// several none is.
void Supervisor::await_daemon(const std::string& name, double now) {
  const double waited = now - since_;
  if (num_without_daemon(now) > 1) {
    if (waited <= thresholds_.start_seconds) return;
    log_error("supervise: the slurmd of {} nodes is gone, and too few others are there: no node's fault",
              num_without_daemon(now));
    return leave(static_cast<int>(ExitCode::kDrained), now);
  }
  const bool has_spare = static_cast<int>(usable(now).size()) > setup_.nodes_needed;
  const double patience = has_spare ? kDaemonSeconds : thresholds_.start_seconds;
  if (waited >= patience && nodes_.at(name).report.daemon_gone >= kDaemonSeconds)
    exclude(name, "its slurmd is gone: no step starts there", now, std::min(kDaemonHours, thresholds_.exclusion_hours));
}

void Supervisor::gather(double now) {
  const std::vector<std::string> names = preferred(now);
  if (static_cast<int>(names.size()) < setup_.nodes_needed) {
    log_error("supervise: {} of the allocation's {} nodes can be used, and {} are needed", names.size(),
              setup_.nodes.size(), setup_.nodes_needed);
    leave(static_cast<int>(ExitCode::kDrained), now);
    return;
  }
  bool all_there = true;
  std::string without_daemon;
  for (int i = 0; i < setup_.nodes_needed; ++i) {
    const std::string& name = names[static_cast<size_t>(i)];
    Node& node = nodes_.at(name);
    if (lacks_daemon(node, now)) {
      without_daemon = name;
      continue;
    }
    if (is_ready(node, now)) continue;
    all_there = false;
    if (is_lost(name, node, now)) {
      if (!is_cut_off(now) && starts_agents(node.asked)) exclude(name, "its agent does not answer", now);
      return;
    }
    if (has_come(node) && now - since_ > thresholds_.start_seconds && node.report.left > 0) {
      exclude(name, fmt::format("{} processes of an earlier attempt do not end", node.report.left), now);
      return;
    }
  }
  if (!without_daemon.empty()) return await_daemon(without_daemon, now);
  if (!all_there) return;
  if (setup_.examine && examined_.empty()) return examine(now);
  start_attempt({names.begin(), names.begin() + setup_.nodes_needed}, now);
}

// Whether the node's agent has reported since its last order, and nothing of an earlier attempt is left there.
bool Supervisor::is_ready(const Node& node, double now) const {
  return has_come(node) && now - node.heard < thresholds_.silent_seconds && heard_since_order(node) &&
         node.report.left == 0;
}

// On nodes that are ready. One whose exclusion is cleared at this moment is not: it is for the next attempt.
void Supervisor::start_attempt(std::vector<std::string> names, double now) {
  read_history(now);
  const bool all_ready = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return !excluded(name) && is_ready(nodes_.at(name), now);
  });
  if (!all_ready) return;  // gather() goes on with others
  const int64_t number = history_.attempts.empty() ? 1 : history_.attempts.back().number + 1;
  current_ = {.number = std::max(number, current_.number + 1),
              .attempt = new_attempt(),
              .job = setup_.job,
              .nodes = names,
              .began = wall_};
  began_ = now;
  current_.from_step = current_.checkpoint = book_.newest_checkpoint();
  current_.step = current_.from_step;
  facts_ = {};
  first_failed_.reset();
  cpu_before_.clear();
  spin_since_ = now;
  reported_.clear();
  killed_ = false;
  next_drain_ = drain_pause_ = 0;
  for (const std::string& name : names) {
    Node& node = nodes_.at(name);
    node.number = current_.number;
    node.stopped.clear();
    node.gone.clear();
    node.behind = 0;
    node.few = false;
    node.gpus_before.clear();
    for (const GpuSight& gpu : node.report.gpus) node.gpus_before[gpu.pci] = gpu;
    node.bytes_before.clear();
    for (const PortSight& port : node.report.ports) node.bytes_before[port.name] = port.received + port.sent;
  }
  book_.append(start_event(current_), current_.attempt);
  if (const double seconds = std::exchange(examination_seconds_, 0); seconds > 0)
    book_.append(diagnosis_event("", seconds, current_.step), current_.attempt);
  order_all(OrderKind::kWatch, current_.attempt);
  log_info("supervise: attempt {} on {} from step {}", current_.number, joined(names), current_.from_step);
  launcher_.start_ranks({.attempt = current_.attempt, .number = current_.number, .nodes = names});
  enter(Phase::kRun, now);
}

void Supervisor::run(double now) {
  if ((asked_to_stop_ || facts_.relief) && now >= next_drain_) {
    // A launcher that is still starting ranks loses the signal. It is repeated after 1, 2, 4, ... seconds, so that a
    // drain is delayed by no more than the start itself takes.
    drain_pause_ = std::clamp(2 * drain_pause_, 1.0, kMaxDrainPause);
    next_drain_ = now + drain_pause_;
    launcher_.drain_ranks();
  }
  facts_.status = launcher_.ranks_status();
  if (facts_.status) return end_attempt(now);
  size_t num_ranks = 0, num_stopped = 0;
  for (const std::string& name : current_.nodes) {
    Node& node = nodes_.at(name);
    if (is_lost(name, node, now)) {
      facts_.findings.push_back(
          {.kind = CauseKind::kNodeLost,
           .node = name,
           .text = fmt::format("node {} is lost: its agent is silent for {:.0f} s, and could not be started anew", name,
                               now - node.heard)});
      return end_attempt(now);
    }
    num_ranks += node.report.ranks.size();
    num_stopped += node.stopped.size();
  }
  // A job that is suspended as a whole is no fault.
  const bool suspended = num_stopped == num_ranks;
  for (const std::string& name : current_.nodes) {
    const Node& node = nodes_.at(name);
    const auto overdue = [&](const std::map<int, Node::RankSince>& ranks, double limit) {
      return std::find_if(ranks.begin(), ranks.end(),
                          [&](const auto& rank) { return limit > 0 && now - rank.second.since > limit; });
    };
    // Who went first is told by the book, or by who was first seen gone.
    if (overdue(node.gone, thresholds_.gone_seconds) != node.gone.end()) {
      facts_.died_unnoticed = true;
      return end_attempt(now);
    }
    if (suspended) continue;
    const auto stopped = overdue(node.stopped, thresholds_.stopped_seconds);
    if (stopped == node.stopped.end()) continue;
    const auto& [process, rank] = *stopped;
    const std::string who =
        rank.world_rank < 0 ? fmt::format("process {}", process) : fmt::format("rank {}", rank.world_rank);
    facts_.findings.push_back({.kind = CauseKind::kHang,
                               .node = name,
                               .world_rank = rank.world_rank,
                               .text = fmt::format("{} on {} is stopped", who, name)});
    return end_attempt(now);
  }
  watch_beginning(now);
  auto late = late_beginning(now);
  if (!late) late = spinning_at_start(now);
  if (late) {
    facts_.findings.push_back(*late);
    return end_attempt(now);
  }
  if (facts_.relief && now - relieved_ > thresholds_.drain_seconds) return end_attempt(now);
  watch_spares(now);
  watch_stragglers(now);
  watch_step(now);
}

void Supervisor::end_attempt(double now) {
  if (!facts_.status) launcher_.end_ranks(Launcher::End::kAsk);
  current_.noticed = date_of(now);
  order_all(OrderKind::kEnd);
  enter(Phase::kEnd, now);
}

// Until launcher and ranks are gone, and each node of the attempt has said so, a moment later where it has failed, or
// is lost.
void Supervisor::finish_ending(double now) {
  const bool ended = facts_.status.has_value() || launcher_.ranks_status().has_value();
  const bool at_fault = facts_.status != 0 && !asked_to_stop_;
  bool all_clear = true;
  for (const std::string& name : current_.nodes) {
    Node& node = nodes_.at(name);
    const auto finding = [&](CauseKind kind, const std::string& text) {
      const bool known = std::any_of(facts_.findings.begin(), facts_.findings.end(),
                                     [&](const AttemptCause& f) { return f.kind == kind && f.node == name; });
      if (!known) facts_.findings.push_back({.kind = kind, .node = name, .text = text});
    };
    if (is_foreign(node, now)) continue;  // it can't say what is left there
    if (is_lost(name, node, now)) {
      finding(CauseKind::kNodeLost, fmt::format("node {} is lost: its agent does not answer", name));
      continue;
    }
    // A driver that has hung since before the end is told of by itself (watch_hardware).
    const double age = node.report.gpu_age;
    const bool has_looked = !at_fault || (node.heard >= since_ + kLookSeconds &&
                                          (node.heard - age >= since_ + kGpuLookSeconds || age > kGpuSilentSeconds));
    if (has_looked && heard_since_order(node) && node.report.left == 0) continue;
    if (heard_since_order(node) && now - since_ > thresholds_.end_seconds) {
      finding(CauseKind::kUnkillable, fmt::format("{} processes on {} do not end", node.report.left, name));
      continue;
    }
    all_clear = false;
  }
  if (!ended && !killed_ && now - since_ > (all_clear ? kAloneSeconds : kAskSeconds)) {
    killed_ = true;
    launcher_.end_ranks(Launcher::End::kKill);
  }
  if (ended && all_clear) conclude(now);
}

// The only node of the attempt that does not see the run's book; "": none, or several. An error that all ranks know of
// does not say who met it.
std::string Supervisor::blind_node() const {
  std::string blind;
  for (const std::string& name : current_.nodes) {
    if (nodes_.at(name).report.sees_run) continue;
    if (!blind.empty()) return "";
    blind = name;
  }
  return blind;
}

void Supervisor::conclude(double now) {
  facts_.asked_to_stop = asked_to_stop_;
  if (is_cut_off(now)) {
    std::erase_if(facts_.findings, [](const AttemptCause& f) { return f.kind == CauseKind::kNodeLost; });
    facts_.findings.push_back({.kind = CauseKind::kCommunication,
                               .text = "no other node is heard any more: the driver's own can't be reached"});
  }
  facts_.event = book_.first_cause(current_.attempt);
  // Whose it was the boxes say where the book can't, as of a node without the run's storage.
  const bool is_known = facts_.event && (facts_.event->kind != RunEventKind::kFailure ||
                                         (!facts_.event->host.empty() && !facts_.event->flag("consequence")));
  const bool explains =
      first_failed_ && (first_failed_->second.status != static_cast<int>(ExitCode::kComm) || !facts_.first_gone);
  if (explains && !is_known) {
    const auto& [host, failure] = *first_failed_;
    facts_.event = {.time = failure.time,
                    .kind = RunEventKind::kFailure,
                    .world_rank = failure.world_rank,
                    .host = host,
                    .text = failure.text,
                    .fields = {{"code", int64_t{failure.status}}, {"consequence", false}}};
    if (failure.step >= 0) facts_.event->fields["step"] = failure.step;
  }
  if (facts_.event) facts_.event_node = node_of_host(facts_.event->host);
  for (const std::string& host : book_.suspects(current_.attempt))
    if (const std::string node = node_of_host(host); !node.empty()) facts_.suspects.push_back(node);
  current_.ended = date_of(now);
  current_.checkpoint = std::max(current_.from_step, book_.newest_checkpoint());
  current_.step = std::max({current_.step, current_.checkpoint, book_.reached_step(current_.attempt)});
  current_.cause = cause_of(facts_, now);
  if (current_.cause.kind == CauseKind::kFile && current_.cause.node.empty()) {
    current_.cause.node = blind_node();
    if (!current_.cause.node.empty())
      current_.cause.text += fmt::format("; {} does not see the run folder", current_.cause.node);
  }
  book_.append(end_event(current_), current_.attempt);
  log_info("supervise: attempt {} has ended after {:.0f} s at step {}, newest checkpoint {}: {}{}: {}", current_.number,
           now - began_, current_.step, current_.checkpoint, enum_name(current_.cause.kind),
           current_.cause.node.empty() ? "" : " (node " + current_.cause.node + ")", current_.cause.text);
  read_history(now);
  // Where the book can't be read, this attempt counts all the same.
  if (history_.attempts.empty() || history_.attempts.back().attempt != current_.attempt)
    history_.attempts.push_back(current_);
  decide_now(std::nullopt, now);
}

void Supervisor::decide_now(std::optional<Diagnosis> diagnosis, double now) {
  const std::vector<std::string> names = usable(now);
  const std::string& guilty = current_.cause.node;
  const int num_usable = static_cast<int>(names.size()) + (guilty.empty() || contains(names, guilty) ? 0 : 1);
  const Decision decision = decide({.attempts = history_.attempts,
                                    .diagnosis = diagnosis,
                                    .nodes_needed = setup_.nodes_needed,
                                    .nodes_usable = num_usable,
                                    .thresholds = thresholds_});
  book_.append({.kind = RunEventKind::kDecision,
                .host = decision.node,
                .text = decision.why,
                .fields = {{"action", std::string(enum_name(decision.action))},
                           {"cause", std::string(enum_name(current_.cause.kind))}}},
               current_.attempt);
  log_info("supervise: {}{}: {}", enum_name(decision.action), decision.node.empty() ? "" : " " + decision.node,
           decision.why);
  if (decision.action == Response::kDoctor) {
    suspect_ = decision.node;
    const auto at = nodes_.find(suspect_);
    if (at == nodes_.end()) return decide_now(Diagnosis::kUnknown, now);
    order(at->second, OrderKind::kDoctor);
    agents_.send(suspect_, at->second.order);
    return enter(Phase::kDoctor, now);
  }
  if (!decision.node.empty() && !excluded(decision.node)) exclude(decision.node, current_.cause.text, now);
  for (const AttemptCause& finding : facts_.findings)
    if (finding.kind == CauseKind::kNodeLost && !excluded(finding.node)) exclude(finding.node, finding.text, now);
  if (decision.action != Response::kRetry && decision.action != Response::kExclude)
    return leave(decision.action == Response::kDone ? 0 : decision.status, now);
  for (auto& [name, node] : nodes_) node.probed = now;
  order_all(OrderKind::kEnd);
  if (current_.cause.kind == CauseKind::kNotStarted || current_.cause.kind == CauseKind::kUnknown) renew_agents(now);
  enter(Phase::kGather, now);
}

void Supervisor::leave(int status, double now) {
  order_all(OrderKind::kLeave);
  status_ = status;
  enter(Phase::kOver, now);
}

}  // namespace tri
