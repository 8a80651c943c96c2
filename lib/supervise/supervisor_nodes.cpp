// Which of the allocation's nodes the driver can use: orders to their agents, agents that are started anew, nodes that
// are lost, left out, or taken again.
#include <algorithm>
#include <utility>

#include "io/base/log.h"
#include "lib/supervise/supervisor.h"

namespace tri {
namespace {

constexpr int kProbes = 3, kSteps = 64;
constexpr int kRefusals = 2;              // starts of an agent that the launcher has called failed
constexpr double kProbeAgainSeconds = 1;  // after such a one

}  // namespace

// An order stands until the agent has said that it has heard it: take() sends it again.
void Supervisor::order(Node& node, OrderKind kind, const std::string& attempt) {
  node.order = {.kind = kind, .number = next_order_++, .attempt = attempt};
  if (kind == OrderKind::kDoctor) node.order.patience = thresholds_.doctor_seconds;
}

void Supervisor::order_all(OrderKind kind, const std::string& attempt) {
  for (auto& [name, node] : nodes_) {
    order(node, kind, attempt);
    agents_.send(name, node.order);
  }
}

bool Supervisor::heard_since_order(const Node& node) const { return node.report.order >= node.order.number; }

std::string Supervisor::node_of_host(const std::string& host) const {
  if (host.empty()) return "";  // as of a node that has not reported yet
  for (const auto& [name, node] : nodes_)
    if (name == host || node.report.host == host || host.substr(0, host.find('.')) == name) return name;
  return "";
}

bool Supervisor::excluded(const std::string& node) const {
  return std::any_of(history_.exclusions.begin(), history_.exclusions.end(),
                     [&](const Exclusion& e) { return e.node == node && e.until > wall_; });
}

// Whether its agent is of another build, and none of this one has reported since.
bool Supervisor::is_foreign(const Node& node, double now) const {
  return node.foreign > node.heard && now - node.foreign < thresholds_.silent_seconds;
}

std::vector<std::string> Supervisor::usable(double now) const {
  std::vector<std::string> names;
  for (const std::string& name : setup_.nodes)
    if (!nodes_.at(name).lost && !excluded(name) && !is_foreign(nodes_.at(name), now)) names.push_back(name);
  return names;
}

void Supervisor::exclude(const std::string& node, const std::string& why, double now, double hours) {
  const Exclusion exclusion{.node = node, .why = why, .since = wall_, .until = wall_ + 3600 * hours};
  history_.exclusions.push_back(exclusion);
  if (const auto at = nodes_.find(node); at != nodes_.end()) at->second.excluded = now;
  book_.append(exclusion_event(exclusion), current_.attempt);
  log_info("supervise: node {} is excluded for {:g} h: {} (`trireme supervise --nodes {} --lift {}` clears that)", node,
           hours, why, setup_.run_dir, node);
}

// The run's book, where people may have taken back what the driver has left out, or its time is over: the agent of such
// a node is started anew.
void Supervisor::read_history(double now) {
  const RunHistory before = std::exchange(history_, book_.history(wall_));
  std::vector<std::string> again;
  for (const Exclusion& exclusion : before.exclusions) {
    const auto at = nodes_.find(exclusion.node);
    if (at == nodes_.end() || excluded(exclusion.node)) continue;
    Node& node = at->second;
    node.lost = false;
    node.asked = node.probed = now;
    node.probes = node.failed = 0;
    again.push_back(exclusion.node);
    log_info("supervise: node {} is taken again", exclusion.node);
  }
  if (!again.empty()) launcher_.start_agents(again);
}

void Supervisor::take(const AgentReport& report, Moment moment) {
  const double now = moment.monotonic;
  wall_ = moment.wall;
  const auto at = nodes_.find(report.node);
  if (at == nodes_.end()) return;
  Node& node = at->second;
  if (report.start <= node.outdated) return;
  node.heard = now;
  node.probes = node.failed = 0;
  node.lost = false;
  node.report = report;
  for (const std::string& line : report.lines) log_warn("supervise: {}: {}", report.node, line);
  if (node.order.number > 0 && !heard_since_order(node)) agents_.send(report.node, node.order);
  if ((phase_ != Phase::kRun && phase_ != Phase::kEnd) || node.number != current_.number) return;
  if (report.watched == current_.attempt) current_.step = std::max(current_.step, report.step);
  // What has ended the attempt may be reported after its end.
  watch_hardware(report.node, node, now);
  watch_failure(report);
  if (phase_ == Phase::kRun) watch_ranks(report.node, node, now);
}

// The node is neither lost nor at fault: it is not used, and not excluded, for the next driver may be of its build.
void Supervisor::agent_of_another_build(const std::string& name, Moment moment) {
  wall_ = moment.wall;
  const auto at = nodes_.find(name);
  const bool is_known = at == nodes_.end() ? std::exchange(knows_stranger_, true)
                                           : is_foreign(at->second, moment.monotonic);
  if (at != nodes_.end()) at->second.foreign = moment.monotonic;
  if (is_known) return;
  log_error(
      "supervise: the agent on {} is of another build of trireme than this driver: the node is not used. Install "
      "one build on all nodes; if the program was replaced during the run, end this driver and start it again",
      at == nodes_.end() ? "a node that is not in this run" : name);
}

// Three tries to start its agent anew, spread over the time of silence.
void Supervisor::probe(const std::string& name, Node& node, double now) {
  node.probed = now;
  ++node.probes;
  log_warn("supervise: no word of node {} for {:.0f} s; its agent is started anew", name,
           now - std::max(node.heard, node.asked));
  launcher_.start_agents({name});
}

bool Supervisor::is_lost(const std::string& name, Node& node, double now) {
  if (node.lost) return true;
  if (is_foreign(node, now)) return false;  // it answers
  const double quiet = thresholds_.silent_seconds, silence = now - std::max({node.heard, node.asked, node.foreign});
  const bool known = has_come(node);
  // Where none of the agents has come that were asked for with this one, it is the launcher that does not work.
  const bool launches = known || starts_agents(node.asked);
  // Where others' can be started, and each start of this one fails, there is nothing to wait for.
  const bool refuses = !known && launches && node.failed > node.probes;
  // A node that never reported has as long as a start takes, a second agent of it twice the time of silence.
  const double limit = known ? quiet : node.heard == 0 || !launches ? thresholds_.start_seconds : 2 * quiet;
  const double pause = refuses ? kProbeAgainSeconds : node.probes < kProbes ? quiet / (kProbes + 1) : quiet;
  const bool is_due = refuses || silence > (known ? quiet / (kProbes + 1) : node.heard == 0 ? limit / 2 : quiet);
  if (is_due && now - node.probed >= pause && (node.probes < kProbes || !launches)) probe(name, node, now);
  node.lost = (!known && launches && node.failed >= kRefusals) || (node.probes >= kProbes && silence > limit);
  return node.lost;
}

// Whether an agent that was asked for at that time or later has come.
bool Supervisor::starts_agents(double since) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& known) {
    const Node& node = known.second;
    return node.asked >= since && has_come(node);
  });
}

// Where of several nodes none but the driver's own is heard any more, it is the driver that can't be reached: none of
// them is at fault.
bool Supervisor::is_cut_off(double now) const {
  int others = 0;
  for (const auto& [name, node] : nodes_) {
    const bool own = name == setup_.host || node.report.host == setup_.host;
    if (own || node.heard == 0 || excluded(name)) continue;
    if (is_foreign(node, now)) return false;
    if (now - node.heard < thresholds_.silent_seconds / 2) return false;
    ++others;
  }
  return others > 1;
}

// The launcher has failed, and it does not matter in which words: a node that can't start an agent any more is lost,
// even where the agent before lives on, as without its slurmd. No more than so many steps at once; a node that spoils
// the step of others is found by the probes, which go to each alone.
void Supervisor::renew_agents(double now) {
  const std::vector<std::string>& nodes = current_.nodes;
  const size_t share = (nodes.size() + kSteps - 1) / kSteps;
  for (size_t begin = 0; begin < nodes.size(); begin += share) {
    const auto first = nodes.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = nodes.begin() + static_cast<std::ptrdiff_t>(std::min(begin + share, nodes.size()));
    for (auto name = first; name != last; ++name) {
      Node& node = nodes_.at(*name);
      node.outdated = node.report.start;
      node.asked = node.probed = now;
      node.probes = node.failed = 0;
    }
    launcher_.start_agents({first, last});
  }
}

}  // namespace tri
