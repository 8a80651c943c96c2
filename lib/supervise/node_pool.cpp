#include "lib/supervise/node_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "io/base/log.h"

namespace tri {
namespace {

constexpr int kProbes = 3, kSteps = 64;
constexpr int kRefusals = 2;              // an agent that fails to start this often makes its node lost
constexpr double kProbeAgainSeconds = 1;  // after a failed start
constexpr int kUnlimited = std::numeric_limits<int>::max();

// How long to wait for a silent node. Silence counts from its last report or, if an agent was just started, from that
// start.
struct SilenceLimits {
  double first_probe = 0;  // seconds of silence until its agent is restarted
  double limit = 0;        // ... until the node is lost, after all probes
  int probes = kProbes;    // maximum
};

SilenceLimits limits_with(Contact contact, const Thresholds& t) {
  const double quiet = t.silent_seconds;
  switch (contact) {
    case Contact::kHeard:
      return {.first_probe = quiet / (kProbes + 1), .limit = quiet};
    case Contact::kAwaited:
      return {.first_probe = quiet, .limit = 2 * quiet};
    case Contact::kNeverHeard:
      return {.first_probe = t.start_seconds / 2, .limit = t.start_seconds};
    case Contact::kNoneStarts:
      return {.first_probe = t.start_seconds / 2, .limit = t.start_seconds, .probes = kUnlimited};
    case Contact::kRefuses:
      return {.first_probe = 0, .limit = quiet};
    case Contact::kForeign:
    case Contact::kLost:
      break;
  }
  return {};
}

}  // namespace

NodePool::NodePool(std::vector<std::string> names, std::string host, Launcher& launcher, AgentLink& agents)
    : names_(std::move(names)), host_(std::move(host)), launcher_(launcher), agents_(agents) {
  for (const std::string& name : names_) nodes_[name];
}

std::string NodePool::node_of_host(const std::string& host) const {
  if (host.empty()) return "";  // a node that has not reported yet
  for (const auto& [name, node] : nodes_)
    if (name == host || node.report.host == host || host.substr(0, host.find('.')) == name) return name;
  return "";
}

void NodePool::start_all(double now) {
  const std::vector<std::string> all = usable(now);
  for (auto& [name, node] : nodes_) node.awaited_since = node.probed = now;
  if (!all.empty()) launcher_.start_agents(all);
}

void NodePool::note_failed_starts() {
  for (const std::string& name : launcher_.failed_agents())
    if (const auto at = nodes_.find(name); at != nodes_.end()) ++at->second.failed;
}

void NodePool::keep_alive() {
  for (const auto& [name, node] : nodes_) agents_.send(name, {});
}

void NodePool::await_reports(double now) {
  for (auto& [name, node] : nodes_) node.probed = now;
}

void NodePool::start_again(const std::vector<std::string>& names, double now) {
  for (const std::string& name : names) {
    Node& node = nodes_.at(name);
    node.awaited_since = node.probed = now;
    node.probes = node.failed = 0;
  }
  launcher_.start_agents(names);
}

// Starts at most kSteps steps at once. If one node breaks the step of others, the probes find it: each goes to a single
// node.
void NodePool::renew_agents(const std::vector<std::string>& names, double now) {
  const size_t share = (names.size() + kSteps - 1) / kSteps;
  for (size_t begin = 0; begin < names.size(); begin += share) {
    const auto first = names.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = names.begin() + static_cast<std::ptrdiff_t>(std::min(begin + share, names.size()));
    for (auto name = first; name != last; ++name) nodes_.at(*name).outdated = nodes_.at(*name).report.start;
    start_again({first, last}, now);
  }
}

const NodePool::Node* NodePool::take(const AgentReport& report, double now) {
  const auto at = nodes_.find(report.node);
  if (at == nodes_.end() || report.start <= at->second.outdated) return nullptr;
  Node& node = at->second;
  node.heard = now;
  node.probes = node.failed = 0;
  node.lost = false;
  node.report = report;
  if (node.order.number > 0 && !has_heard_order(node)) agents_.send(report.node, node.order);
  return &node;
}

bool NodePool::note_foreign(const std::string& name, double now) {
  const auto at = nodes_.find(name);
  if (at == nodes_.end()) return !std::exchange(knows_other_build_, true);
  const bool is_known = is_foreign(at->second, now);
  at->second.foreign = now;
  return !is_known;
}

void NodePool::order(const std::string& name, OrderKind kind, const std::string& attempt) {
  Node& node = nodes_.at(name);
  node.order = {.kind = kind, .number = next_order_++, .attempt = attempt};
  if (kind == OrderKind::kDoctor) node.order.timeout = thresholds_.doctor_seconds;
  agents_.send(name, node.order);
}

void NodePool::order_all(OrderKind kind, const std::string& attempt) {
  for (const auto& [name, node] : nodes_) order(name, kind, attempt);
}

bool NodePool::is_foreign(const Node& node, double now) const {
  return node.foreign > node.heard && now - node.foreign < thresholds_.silent_seconds;
}

Contact NodePool::contact(const Node& node, double now) const {
  if (node.lost) return Contact::kLost;
  if (is_foreign(node, now)) return Contact::kForeign;
  if (has_reported(node)) return Contact::kHeard;
  if (!starts_agents(node.awaited_since)) return Contact::kNoneStarts;
  // a failed start without a later probe
  if (node.failed > node.probes || node.failed >= kRefusals) return Contact::kRefuses;
  return node.heard == 0 ? Contact::kNeverHeard : Contact::kAwaited;
}

bool NodePool::is_lost(const std::string& name, double now) {
  Node& node = nodes_.at(name);
  const Contact state = contact(node, now);
  if (state == Contact::kLost) return true;
  if (state == Contact::kForeign) return false;
  const SilenceLimits limits = limits_with(state, thresholds_);
  const double quiet = thresholds_.silent_seconds,
               silence = now - std::max({node.heard, node.awaited_since, node.foreign});
  const double pause = state == Contact::kRefuses ? kProbeAgainSeconds
                       : node.probes < kProbes    ? quiet / (kProbes + 1)
                                                  : quiet;
  const bool is_due = state == Contact::kRefuses || silence > limits.first_probe;
  const bool gives_up = state == Contact::kRefuses && node.failed >= kRefusals;
  if (is_due && !gives_up && now - node.probed >= pause && node.probes < limits.probes) probe(name, node, now);
  node.lost = gives_up || (node.probes >= kProbes && silence > limits.limit);
  return node.lost;
}

void NodePool::probe(const std::string& name, Node& node, double now) {
  node.probed = now;
  ++node.probes;
  log_warn("supervise: node {} has not reported for {:.0f} s; restarting its agent", name,
           now - std::max(node.heard, node.awaited_since));
  launcher_.start_agents({name});
}

bool NodePool::starts_agents(double since) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& known) {
    return known.second.awaited_since >= since && has_reported(known.second);
  });
}

bool NodePool::is_cut_off(double now) const {
  int others = 0;
  for (const auto& [name, node] : nodes_) {
    const bool own = name == host_ || node.report.host == host_;
    if (own || node.heard == 0 || is_excluded(name)) continue;
    if (is_foreign(node, now)) return false;
    if (now - node.heard < thresholds_.silent_seconds / 2) return false;
    ++others;
  }
  return others > 1;
}

bool NodePool::is_ready(const Node& node, double now) const {
  return has_reported(node) && is_fresh(node, now) && has_heard_order(node) && node.report.left == 0;
}

bool NodePool::lacks_daemon(const Node& node, double now) const {
  return !node.lost && has_reported(node) && is_fresh(node, now) && node.report.daemon_gone > 0;
}

int NodePool::num_without_daemon(double since, double now) const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& known) {
    const auto& [name, node] = known;
    return lacks_daemon(node, now) && (!is_excluded(name) || node.excluded >= since);
  }));
}

std::vector<std::string> NodePool::usable(double now) const {
  std::vector<std::string> usable;
  for (const std::string& name : names_)
    if (const Node& node = nodes_.at(name); !node.lost && !is_excluded(name) && !is_foreign(node, now))
      usable.push_back(name);
  return usable;
}

bool NodePool::is_excluded(const std::string& name) const {
  return std::any_of(exclusions_.begin(), exclusions_.end(),
                     [&](const Exclusion& e) { return e.node == name && e.until > wall_; });
}

void NodePool::exclude(const Exclusion& exclusion, double now) {
  exclusions_.push_back(exclusion);
  if (const auto at = nodes_.find(exclusion.node); at != nodes_.end()) at->second.excluded = now;
}

void NodePool::set_exclusions(std::vector<Exclusion> exclusions, double now) {
  const std::vector<Exclusion> before = std::exchange(exclusions_, std::move(exclusions));
  std::vector<std::string> again;
  for (const Exclusion& exclusion : before) {
    const auto at = nodes_.find(exclusion.node);
    if (at == nodes_.end() || is_excluded(exclusion.node)) continue;
    at->second.lost = false;
    again.push_back(exclusion.node);
    log_info("supervise: the exclusion of node {} has ended; it can be used again", exclusion.node);
  }
  if (!again.empty()) start_again(again, now);
}

}  // namespace tri
