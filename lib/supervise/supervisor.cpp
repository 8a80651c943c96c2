#include "lib/supervise/supervisor.h"

#include <algorithm>
#include <utility>

#include "io/base/format.h"
#include "io/base/log.h"
#include "io/checkpoint/folder.h"

namespace tri {
namespace {

constexpr double kRequestSeconds = 5;  // launcher and ranks must exit within this time after a request
constexpr double kAloneSeconds = 3;    // ... or a launcher whose ranks are gone, such as srun waiting for a node
                                       // without slurmd
// How long agent and driver must see no slurmd: a restarted service returns within seconds.
constexpr double kDaemonSeconds = 5;
constexpr double kDaemonHours = 1;  // such a node is healthy except for a service that an administrator must restart
// The sign of a GPU fault may appear shortly after its rank has died.
constexpr double kLookSeconds = 2, kGpuLookSeconds = 1;
constexpr double kPulseSeconds = 10, kMaxDrainPause = 30, kRereadSeconds = 5;
constexpr double kStragglerSeconds = 30;  // between two reads of the stragglers in the run folder

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Supervisor::Supervisor(Setup setup, Launcher& launcher, AgentLink& agents, RunLog& event_log)
    : setup_(std::move(setup)),
      launcher_(launcher),
      event_log_(event_log),
      pool_(setup_.nodes, setup_.host, launcher, agents),
      attempt_(setup_.ranks_per_node) {}

void Supervisor::enter(Phase phase, double now) {
  phase_ = phase;
  since_ = now;
}

void Supervisor::set_clocks(Moment moment) {
  wall_ = moment.wall;
  pool_.set_wall(moment.wall);
}

void Supervisor::stop_requested(Moment moment) {
  set_clocks(moment);
  if (stop_requested_ || status_) return;
  stop_requested_ = true;
  log_info("supervise: received a stop signal; the run ends after its ranks have saved a checkpoint");
  if (phase_ != Phase::kRun && phase_ != Phase::kEnd) leave(static_cast<int>(ExitCode::kDrained), moment.monotonic);
}

void Supervisor::take(const AgentReport& report, Moment moment) {
  const double now = moment.monotonic;
  set_clocks(moment);
  const NodePool::Node* node = pool_.take(report, now);
  if (node == nullptr) return;
  for (const std::string& line : report.lines) log_warn("supervise: {}: {}", report.node, line);
  if ((phase_ != Phase::kRun && phase_ != Phase::kEnd) || !attempt_.uses(report.node)) return;
  for (AttemptCause& finding : attempt_.take(report, thresholds_, now)) found(std::move(finding), now);
  if (phase_ == Phase::kRun) attempt_.take_ranks(report, now);
}

// The node is neither lost nor at fault. It is not used, but not excluded either: the next driver may match its build.
void Supervisor::agent_of_another_build(const std::string& name, Moment moment) {
  set_clocks(moment);
  if (!pool_.note_foreign(name, moment.monotonic)) return;
  log_error(
      "supervise: the agent on {} belongs to another build of trireme than this driver, so the node is not used. "
      "Install one build on all nodes; if the program was replaced during the run, stop this driver and start it again",
      pool_.has(name) ? name : "a node that is not in this run");
}

void Supervisor::begin(double now) {
  thresholds_ = event_log_.thresholds();
  pool_.set_thresholds(thresholds_);
  RunHistory history = event_log_.history(wall_);
  past_ = std::move(history.attempts);
  pool_.set_exclusions(std::move(history.exclusions), now);
  pool_.start_all(now);
  pool_.order_all(OrderKind::kEnd);  // end processes of earlier attempts
  enter(Phase::kGather, now);
}

// Does the work common to all phases.
void Supervisor::do_chores(double now) {
  pool_.note_failed_starts();
  if (now - read_ > kRereadSeconds) {
    read_ = now;
    thresholds_ = event_log_.thresholds();
    pool_.set_thresholds(thresholds_);
  }
  if (now - pulsed_ > kPulseSeconds) {
    pulsed_ = now;
    pool_.keep_alive();
  }
}

void Supervisor::tick(Moment moment) {
  const double now = moment.monotonic;
  set_clocks(moment);
  if (phase_ == Phase::kOver) return;
  if (phase_ == Phase::kBegin) begin(now);
  do_chores(now);
  switch (phase_) {
    case Phase::kGather:
      return gather(now);
    case Phase::kExamine:
      return await_examination(now);
    case Phase::kRun:
      return run(now);
    case Phase::kEnd:
      return finish_ending(now);
    case Phase::kDoctor:
      return await_doctor(now);
    case Phase::kBegin:
    case Phase::kOver:
      return;
  }
}

void Supervisor::leave(int status, double now) {
  // After status 75 the job may be requeued to the same nodes, whose memory then still holds its newest state.
  pool_.order_all(status == static_cast<int>(ExitCode::kDrained) ? OrderKind::kLeave : OrderKind::kFinish);
  status_ = status;
  enter(Phase::kOver, now);
}

// --- Gather ----------------------------------------------------------------------------------------------------------

// Returns the usable nodes in order of preference. If several lack their slurmd, those come last.
std::vector<std::string> Supervisor::preferred(double now) const {
  std::vector<std::string> names = pool_.usable(now);
  if (pool_.num_without_daemon(since_, now) < 2 || now - since_ < kDaemonSeconds) return names;
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& name) { return !pool_.lacks_daemon(pool_.at(name), now); });
  return names;
}

// A node that is needed has no slurmd. A single such node is excluded for a while, and early if a spare can replace it.
// If several nodes have none, Slurm itself or an upgrade is the cause, and none is excluded.
void Supervisor::await_daemon(const std::string& name, double now) {
  const double waited = now - since_;
  if (const int count = pool_.num_without_daemon(since_, now); count > 1) {
    if (waited <= thresholds_.start_seconds) return;
    log_error(
        "supervise: slurmd is down on {} nodes, and the others are fewer than the {} that are needed; exiting with "
        "status 75, no node is excluded",
        count, setup_.nodes_needed);
    return leave(static_cast<int>(ExitCode::kDrained), now);
  }
  const bool has_spare = static_cast<int>(pool_.usable(now).size()) > setup_.nodes_needed;
  const double timeout = has_spare ? kDaemonSeconds : thresholds_.start_seconds;
  if (waited >= timeout && pool_.at(name).report.daemon_gone >= kDaemonSeconds)
    exclude(name, "its slurmd is down, so no job step can start there", now,
            std::min(kDaemonHours, thresholds_.exclusion_hours));
}

void Supervisor::gather(double now) {
  const std::vector<std::string> names = preferred(now);
  if (static_cast<int>(names.size()) < setup_.nodes_needed) {
    log_error(
        "supervise: {} of the allocation's {} can be used, but the run needs {}; exiting with status 75 (`trireme "
        "supervise {} --nodes` lists the excluded nodes)",
        names.size(), counted(std::ssize(setup_.nodes), "node"), setup_.nodes_needed, setup_.run_dir);
    return leave(static_cast<int>(ExitCode::kDrained), now);
  }
  const std::vector<std::string> wanted(names.begin(), names.begin() + setup_.nodes_needed);
  bool all_there = true;
  std::string without_daemon;
  for (const std::string& name : wanted) {
    const NodePool::Node& node = pool_.at(name);
    if (pool_.lacks_daemon(node, now)) {
      without_daemon = name;
      continue;
    }
    if (pool_.is_ready(node, now)) continue;
    all_there = false;
    if (pool_.is_lost(name, now)) {
      if (!pool_.is_cut_off(now) && pool_.starts_agents(node.awaited_since))
        exclude(name, "its agent does not respond", now);
      return;
    }
    if (pool_.has_reported(node) && now - since_ > thresholds_.start_seconds && node.report.left > 0)
      return exclude(name, counted(node.report.left, "process") + " of an earlier attempt could not be ended", now);
  }
  if (!without_daemon.empty()) return await_daemon(without_daemon, now);
  if (!all_there) return;
  if (setup_.examine && examined_.empty()) return examine(now);
  start_attempt(wanted, now);
}

// Does nothing unless all nodes are ready. A node whose exclusion ends at this moment is not ready and serves the next
// attempt.
void Supervisor::start_attempt(const std::vector<std::string>& names, double now) {
  read_history(now);
  const bool all_ready = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return !pool_.is_excluded(name) && pool_.is_ready(pool_.at(name), now);
  });
  if (!all_ready) return;  // gather() continues with other nodes
  const int64_t number = past_.empty() ? 1 : past_.back().number + 1, step = event_log_.newest_checkpoint();
  attempt_.begin({.number = std::max(number, attempt_.attempt().number + 1),
                  .attempt = new_attempt(),
                  .job = setup_.job,
                  .nodes = names,
                  .began = wall_,
                  .from_step = step,
                  .checkpoint = step,
                  .step = step},
                 pool_, now);
  const PastAttempt& attempt = attempt_.attempt();
  killed_ = false;
  drain_ = {};
  event_log_.append(start_event(attempt), attempt.attempt);
  if (const double seconds = std::exchange(examination_seconds_, 0); seconds > 0)
    event_log_.append(diagnosis_event("", seconds, attempt.step), attempt.attempt);
  pool_.order_all(OrderKind::kWatch, attempt.attempt);
  log_info("supervise: attempt {} on {} from step {}", attempt.number, joined(names), attempt.from_step);
  launcher_.start_ranks({.attempt = attempt.attempt, .number = attempt.number, .nodes = names});
  enter(Phase::kRun, now);
}

void Supervisor::exclude(const std::string& node, const std::string& why, double now, double hours) {
  const Exclusion exclusion{.node = node, .why = why, .since = wall_, .until = wall_ + 3600 * hours};
  pool_.exclude(exclusion, now);
  event_log_.append(exclusion_event(exclusion), attempt_.attempt().attempt);
  log_info("supervise: node {} is excluded for {:g} h: {} (`trireme supervise --nodes {} --clear {}` clears that)",
           node, hours, why, setup_.run_dir, node);
}

// Reads the run's events again: an exclusion may have expired, or an operator may have cleared it.
void Supervisor::read_history(double now) {
  RunHistory history = event_log_.history(wall_);
  past_ = std::move(history.attempts);
  pool_.set_exclusions(std::move(history.exclusions), now);
}

// --- The doctor: examines every node before the first attempt, if requested, and later the node at fault -------------

bool Supervisor::doctor_has_answered(const NodePool::Node& node) const {
  return pool_.has_heard_order(node) && node.report.doctor_status >= 0;
}

// Examines spare nodes too, which must be healthy when they are needed. Does not wait for nodes that have not reported
// yet.
void Supervisor::examine(double now) {
  for (const std::string& name : pool_.usable(now)) {
    if (!pool_.has_reported(pool_.at(name))) continue;
    pool_.order(name, OrderKind::kDoctor);
    examined_.push_back(name);
  }
  log_info("supervise: the doctor examines {}", counted(std::ssize(examined_), "node"));
  enter(Phase::kExamine, now);
}

void Supervisor::await_examination(double now) {
  std::vector<std::pair<std::string, Diagnosis>> nodes;
  for (const std::string& name : examined_) {
    const bool answered = doctor_has_answered(pool_.at(name));
    if (!answered && now - since_ <= thresholds_.doctor_seconds && !pool_.is_lost(name, now)) return;
    nodes.emplace_back(name, answered ? diagnosis_of(pool_.at(name).report.doctor_status) : Diagnosis::kUnknown);
  }
  for (const Decision& decision :
       decide_before_start(nodes, setup_.nodes_needed, static_cast<int>(pool_.usable(now).size()))) {
    log_warn("supervise: before the first attempt, node {}: {}", decision.node, decision.why);
    event_log_.append({.kind = RunEventKind::kDecision,
                       .host = decision.node,
                       .text = decision.why,
                       .fields = {{"action", std::string(enum_name(decision.action))}}},
                      "");
    if (decision.action == Response::kExclude) exclude(decision.node, decision.why, now);
  }
  examination_seconds_ = now - since_;
  enter(Phase::kGather, now);
}

void Supervisor::await_doctor(double now) {
  const NodePool::Node& node = pool_.at(suspect_);
  const bool answered = doctor_has_answered(node);
  if (!answered && now - since_ <= thresholds_.doctor_seconds) return;
  event_log_.append(diagnosis_event(suspect_, now - since_, attempt_.attempt().step), attempt_.attempt().attempt);
  decide_now(answered ? diagnosis_of(node.report.doctor_status) : Diagnosis::kUnknown, now);
}

// --- Run -------------------------------------------------------------------------------------------------------------

// A launcher that is still starting ranks loses the signal. So the signal is repeated after 1, 2, 4, ... seconds: a
// drain is delayed by no more than the duration of the start.
void Supervisor::drain(double now) {
  if (now < drain_.next) return;
  drain_.pause = std::clamp(2 * drain_.pause, 1.0, kMaxDrainPause);
  drain_.next = now + drain_.pause;
  launcher_.drain_ranks();
}

void Supervisor::run(double now) {
  EndFacts& facts = attempt_.facts();
  if (stop_requested_ || facts.replacement) drain(now);
  facts.status = launcher_.ranks_status();
  if (facts.status) return end_attempt(now);
  for (const std::string& name : attempt_.attempt().nodes) {
    if (!pool_.is_lost(name, now)) continue;
    facts.findings.push_back(
        {.kind = CauseKind::kNodeLost,
         .node = name,
         .text = fmt::format("node {} is lost: its agent has not reported for {:.0f} s and could not be restarted",
                             name, now - pool_.at(name).heard)});
    return end_attempt(now);
  }
  const auto has_begun = [&] { return event_log_.has_begun(attempt_.attempt().attempt); };
  if (attempt_.must_end(pool_, thresholds_, has_begun, now)) return end_attempt(now);
  if (facts.replacement && now - replace_requested_ > thresholds_.drain_seconds) return end_attempt(now);
  watch_spares(now);
  watch_stragglers(now);
  watch_step(now);
}

void Supervisor::found(AttemptCause finding, double now) {
  finding.time = now;
  EndFacts& facts = attempt_.facts();
  if (finding.kind != CauseKind::kStraggler) attempt_.add(finding);  // a straggler does not end an attempt
  const bool is_sure = finding.kind == CauseKind::kGpuSick || finding.kind == CauseKind::kPortFlaps ||
                       finding.kind == CauseKind::kStraggler;
  if (phase_ != Phase::kRun || facts.replacement || stop_requested_) return;
  const Decision decision = is_sure
                                ? decide_at_work_now(finding, now)
                                : Decision{.action = Response::kReport, .why = "it is considered if the attempt fails"};
  if (decision.action == Response::kReplace) {
    facts.replacement = finding;
    replace_requested_ = now;
  } else if (!attempt_.is_first_report_of(finding)) {
    return;
  }
  log_warn("supervise: {}; {}{}", finding.text,
           decision.action == Response::kReplace ? "the attempt saves a checkpoint and ends: " : "", decision.why);
  event_log_.append({.kind = RunEventKind::kDecision,
                     .host = finding.node,
                     .text = finding.text + ": " + decision.why,
                     .fields = {{"action", std::string(enum_name(decision.action))},
                                {"cause", std::string(enum_name(finding.kind))}}},
                    attempt_.attempt().attempt);
}

Decision Supervisor::decide_at_work_now(const AttemptCause& finding, double now) const {
  return decide_at_work({.attempts = past_,
                         .nodes_needed = setup_.nodes_needed,
                         .nodes_usable = static_cast<int>(pool_.usable(now).size()),
                         .thresholds = thresholds_},
                        finding, wall_);
}

// The trainer measures which ranks are slower than other ranks with the same work, and writes them to the run folder.
void Supervisor::watch_stragglers(double now) {
  if (now - looked_ < kStragglerSeconds) return;
  looked_ = now;
  for (const RunEvent& event : event_log_.stragglers(attempt_.attempt().attempt))
    if (const std::string node = pool_.node_of_host(event.host); !node.empty())
      found({.kind = CauseKind::kStraggler, .node = node, .world_rank = event.world_rank, .text = event.text}, now);
}

// The loss of a spare node must be known before the node is needed.
void Supervisor::watch_spares(double now) {
  for (const std::string& name : pool_.usable(now))
    if (!attempt_.uses(name) && pool_.is_lost(name, now) && !pool_.is_cut_off(now))
      exclude(name, "its agent does not respond", now);
}

// If a loss that was not finite does not recur, its node is at fault and is excluded from the next attempt.
void Supervisor::watch_step(double now) {
  const auto passing =
      decide_in_passing({.attempts = past_, .thresholds = thresholds_, .job = setup_.job}, attempt_.attempt().step);
  if (!passing || pool_.is_excluded(passing->node)) return;
  const auto known = std::any_of(pool_.exclusions().begin(), pool_.exclusions().end(),
                                 [&](const Exclusion& e) { return e.node == passing->node; });
  if (!known) exclude(passing->node, passing->why, now);
}

// --- End -------------------------------------------------------------------------------------------------------------

void Supervisor::end_attempt(double now) {
  if (!attempt_.facts().status) launcher_.end_ranks(Launcher::End::kRequest);
  attempt_.attempt().noticed = attempt_.date_of(now);
  pool_.order_all(OrderKind::kEnd);
  enter(Phase::kEnd, now);
}

// Whether the node has no process of the attempt left, or waiting for it is useless.
bool Supervisor::is_clear(const std::string& name, double now) {
  const NodePool::Node& node = pool_.at(name);
  if (pool_.is_foreign(node, now)) return true;  // its agent can't report remaining processes
  if (pool_.is_lost(name, now)) {
    attempt_.add_once(CauseKind::kNodeLost, name, fmt::format("node {} is lost: its agent does not respond", name));
    return true;
  }
  const bool at_fault = attempt_.facts().status != 0 && !stop_requested_;
  // AttemptWatch reports a GPU driver that hung before the end.
  const double age = node.report.gpu_age;
  // The launcher may take a second or two to end after a rank's death.
  const auto& gone = attempt_.facts().first_gone;
  const double died = gone ? std::min(since_, gone->time) : since_;
  const bool has_looked = !at_fault || (node.heard >= died + kLookSeconds &&
                                        (node.heard - age >= died + kGpuLookSeconds || age > kGpuSilentSeconds));
  if (has_looked && pool_.has_heard_order(node) && node.report.left == 0) return true;
  if (!pool_.has_heard_order(node) || now - since_ <= thresholds_.end_seconds) return false;
  attempt_.add_once(CauseKind::kUnkillable, name,
                    fmt::format("{} on {} could not be ended", counted(node.report.left, "process"), name));
  return true;
}

// Waits until the launcher and the ranks have ended, and each node of the attempt has reported that or is lost. After a
// failure, waits a little longer for findings.
void Supervisor::finish_ending(double now) {
  const bool ended = attempt_.facts().status.has_value() || launcher_.ranks_status().has_value();
  bool all_clear = true;
  for (const std::string& name : attempt_.attempt().nodes) all_clear = is_clear(name, now) && all_clear;
  if (!ended && !killed_ && now - since_ > (all_clear ? kAloneSeconds : kRequestSeconds)) {
    killed_ = true;
    launcher_.end_ranks(Launcher::End::kKill);
  }
  if (ended && all_clear) conclude(now);
}

void Supervisor::conclude(double now) {
  EndFacts& facts = attempt_.facts();
  PastAttempt& attempt = attempt_.attempt();
  facts.stop_requested = stop_requested_;
  if (pool_.is_cut_off(now)) {
    std::erase_if(facts.findings, [](const AttemptCause& f) { return f.kind == CauseKind::kNodeLost; });
    facts.findings.push_back({.kind = CauseKind::kCommunication,
                              .text = "no other node responds, so the driver's own node is cut off from the network"});
  }
  facts.event = event_log_.first_cause(attempt.attempt);
  // If the events do not name the failed rank, for example on a node without the run's storage, use the flight
  // recorders.
  const bool is_known = facts.event && (facts.event->kind != RunEventKind::kFailure ||
                                        (!facts.event->host.empty() && !facts.event->flag("consequence")));
  if (auto recorded = attempt_.recorded_failure(); recorded && !is_known) facts.event = std::move(recorded);
  if (facts.event) facts.event_node = pool_.node_of_host(facts.event->host);
  for (const std::string& host : event_log_.suspects(attempt.attempt))
    if (const std::string node = pool_.node_of_host(host); !node.empty()) facts.suspects.push_back(node);
  attempt.ended = attempt_.date_of(now);
  attempt.checkpoint = std::max(attempt.from_step, event_log_.newest_checkpoint());
  attempt.step = std::max({attempt.step, attempt.checkpoint, event_log_.reached_step(attempt.attempt)});
  attempt.cause = cause_of(facts, now);
  if (attempt.cause.kind == CauseKind::kFile && attempt.cause.node.empty()) {
    attempt.cause.node = attempt_.blind_node(pool_);
    if (!attempt.cause.node.empty())
      attempt.cause.text += fmt::format("; node {} does not see the run folder", attempt.cause.node);
  }
  event_log_.append(end_event(attempt), attempt.attempt);
  log_info("supervise: attempt {} ended after {:.0f} s at step {}, newest checkpoint {}: {}{}: {}", attempt.number,
           attempt_.seconds(now), attempt.step, attempt.checkpoint,
           attempt.cause.kind == CauseKind::kDrainedItself ? "stopped early" : enum_name(attempt.cause.kind),
           attempt.cause.node.empty() ? "" : " (node " + attempt.cause.node + ")", attempt.cause.text);
  read_history(now);
  // This attempt counts even if the events can't be read.
  if (past_.empty() || past_.back().attempt != attempt.attempt) past_.push_back(attempt);
  decide_now(std::nullopt, now);
}

void Supervisor::decide_now(std::optional<Diagnosis> diagnosis, double now) {
  const PastAttempt& attempt = attempt_.attempt();
  const std::vector<std::string> names = pool_.usable(now);
  const std::string& faulty = attempt.cause.node;
  const int num_usable = static_cast<int>(names.size()) + (faulty.empty() || contains(names, faulty) ? 0 : 1);
  const Decision decision = decide({.attempts = past_,
                                    .diagnosis = diagnosis,
                                    .nodes_needed = setup_.nodes_needed,
                                    .nodes_usable = num_usable,
                                    .thresholds = thresholds_});
  const RunEvent event{.kind = RunEventKind::kDecision,
                       .host = decision.node,
                       .text = decision.why,
                       .fields = {{"action", std::string(enum_name(decision.action))},
                                  {"cause", std::string(enum_name(attempt.cause.kind))}}};
  event_log_.append(event, attempt.attempt);
  log_info("supervise: {}", describe_decision(event));
  if (decision.action == Response::kDoctor) {
    suspect_ = decision.node;
    if (!pool_.has(suspect_)) return decide_now(Diagnosis::kUnknown, now);
    pool_.order(suspect_, OrderKind::kDoctor);
    return enter(Phase::kDoctor, now);
  }
  if (!decision.node.empty() && !pool_.is_excluded(decision.node)) exclude(decision.node, attempt.cause.text, now);
  for (const AttemptCause& finding : attempt_.facts().findings)
    if (finding.kind == CauseKind::kNodeLost && !pool_.is_excluded(finding.node))
      exclude(finding.node, finding.text, now);
  if (decision.action != Response::kRetry && decision.action != Response::kExclude)
    return leave(decision.action == Response::kDone ? 0 : decision.status, now);
  pool_.await_reports(now);
  pool_.order_all(OrderKind::kEnd);
  // The launcher has failed. A node that can't start a new agent, for example without slurmd, counts as lost even if
  // its previous agent still runs.
  if (attempt.cause.kind == CauseKind::kNotStarted || attempt.cause.kind == CauseKind::kUnknown)
    pool_.renew_agents(attempt.nodes, now);
  enter(Phase::kGather, now);
}

}  // namespace tri
