// Simulated nodes, launcher, run folder and clocks of a supervised run, which are all that the Supervisor sees.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/supervise/supervisor.h"

namespace tri {

struct SimulatedNode {
  bool alive = true;         // its agent reports and receives orders
  bool comes_back = false;   // ... after a restart
  bool refuses = false;      // its agent cannot be started, and the launcher reports that
  double refuses_after = 0;  // ... after this many seconds
  int doctor = 0;            // exit status of its next doctor
  int leftovers = 0;         // processes that do not end
  std::vector<RankSight> ranks;
  std::vector<GpuSight> gpus;
  std::vector<PortSight> ports;
  AgentReport report;
};

// A rank's entry in the event log when it fails.
inline RunEvent failure(const std::string& host, int code, int rank = 0) {
  return {.kind = RunEventKind::kFailure,
          .world_rank = rank,
          .host = host,
          .text = "it failed",
          .fields = {{"code", int64_t{code}}, {"consequence", false}}};
}

class SimulatedCluster : public Launcher, public AgentLink, public RunLog {
 public:
  SimulatedCluster(int num_nodes, int needed, int ranks_per_node = 2, bool examine = false,
                   int known_ranks_per_node = 0)
      : ranks_per_node_(ranks_per_node) {
    Supervisor::Setup setup{.nodes_needed = needed,
                            .run_dir = "/runs/simulated",
                            .examine = examine,
                            .host = "host0",
                            .ranks_per_node = known_ranks_per_node};
    for (int i = 0; i < num_nodes; ++i) {
      const std::string name = "node" + std::to_string(i);
      setup.nodes.push_back(name);
      nodes[name].report = {.node = name, .host = "host" + std::to_string(i), .start = 1};
    }
    supervisor = std::make_unique<Supervisor>(setup, *this, *this, *this);
  }

  // Runs for `seconds`; calls `each` before every second's reports.
  void play(
      double seconds, const std::function<void()>& each = [] {}) {
    for (long left = std::lround(seconds * kTurns); left > 0 && !supervisor->status(); --left) {
      if (++turns_ % kTurns == 0) {
        each();
        for (auto& [name, node] : nodes)
          if (node.alive) supervisor->take(report_of(node), moment());
        for (const std::string& name : foreign) supervisor->agent_of_another_build(name, moment());
      }
      supervisor->tick(moment());
      now = kStart + static_cast<double>(turns_) / kTurns;
    }
  }
  // Runs until attempt `number` starts or the run has ended; fails the caller's expectations if neither happens.
  bool play_until_attempt(int number, double most = 300) {
    for (const double end = now + most; now < end && starts.size() < static_cast<size_t>(number);) {
      if (supervisor->status()) return false;
      play(1.0 / kTurns);
    }
    return starts.size() >= static_cast<size_t>(number);
  }
  // The ranks end by themselves.
  void end_ranks_with(int status, int64_t checkpoint_now) {
    checkpoint = checkpoint_now;
    ranks = status;
  }
  SimulatedNode& node(int i) { return nodes.at("node" + std::to_string(i)); }
  std::vector<std::string> excluded() const {
    std::vector<std::string> names;
    for (const RunEvent& event : events)
      if (event.kind == RunEventKind::kExclusion) names.push_back(event.host);
    return names;
  }
  int count(RunEventKind kind, const std::string& field = "", const std::string& value = "") const {
    return static_cast<int>(std::count_if(events.begin(), events.end(), [&](const RunEvent& e) {
      return e.kind == kind && (field.empty() || e.string(field) == value);
    }));
  }

  // The clocks: `now` is monotonic. The wall clock shows `wall()` and may be set at any time through `step`.
  static constexpr double kStart = 5000, kEpoch = 1.8e9;
  double now = kStart, step = 0;
  double wall() const { return kEpoch + (now - kStart) + step; }
  Moment moment() const { return {.monotonic = now, .wall = wall()}; }
  static constexpr const char* kIdlePort = "usb0";  // the only one that training does not use
  std::set<std::string> foreign;                    // nodes whose agents are of another build
  std::map<std::string, SimulatedNode> nodes;
  std::unique_ptr<Supervisor> supervisor;
  // State of the launcher:
  std::vector<RanksStart> starts;
  std::vector<std::vector<std::string>> agent_starts;
  std::vector<std::pair<double, std::string>> failed;  // starts of agents, and when known; until the next query
  std::optional<int> ranks = 1;                        // exit status; none: running
  std::optional<int> status_if_drained = 75;
  bool exits_on_stop = true;
  int drains = 0, stop_requests = 0, kills = 0;
  double timeout = 0;  // for the doctor requested last
  // State of the run folder:
  std::vector<RunEvent> events;
  int64_t checkpoint = 0, reached = 0;
  std::optional<RunEvent> cause;
  std::vector<std::string> suspect_hosts;
  Thresholds given;

  // Launcher
  void start_agents(const std::vector<std::string>& names) override {
    agent_starts.push_back(names);
    for (const std::string& name : names) {
      SimulatedNode& node = nodes.at(name);
      if (node.refuses) failed.emplace_back(now + node.refuses_after, name);
      if (!node.comes_back || node.refuses) continue;
      node.alive = true;
      node.report.start = static_cast<int64_t>(agent_starts.size()) + 1;
      node.report.order = 0;
    }
  }
  std::vector<std::string> failed_agents() override {
    std::vector<std::string> names;
    std::erase_if(failed, [&](const auto& start) {
      if (start.first > now) return false;
      names.push_back(start.second);
      return true;
    });
    return names;
  }
  void start_ranks(const RanksStart& start) override {
    starts.push_back(start);
    ranks.reset();
    cause.reset();
    int rank = 0;
    for (auto& [name, node] : nodes) node.ranks.clear();
    for (const std::string& name : start.nodes)
      for (int i = 0; i < ranks_per_node_; ++i)
        nodes.at(name).ranks.push_back({.world_rank = rank++, .process = 100 + rank, .state = ProcessState::kRuns});
  }
  std::optional<int> ranks_status() override { return ranks; }
  void drain_ranks() override {
    ++drains;
    if (!ranks) ranks = status_if_drained;
  }
  void end_ranks(End how) override {
    ++(how == End::kRequest ? stop_requests : kills);
    if (!ranks && (how == End::kKill || exits_on_stop)) ranks = 143;
  }
  // AgentLink
  bool send(const std::string& name, const AgentOrder& order) override {
    SimulatedNode& node = nodes.at(name);
    if (!node.alive) return false;
    if (order.number <= node.report.order) return true;
    node.report.order = order.number;
    if (order.kind == OrderKind::kDoctor) timeout = order.timeout;
    if (order.kind == OrderKind::kDoctor)
      node.report.doctor_status = node.doctor;
    else
      node.report.attempt = order.kind == OrderKind::kWatch ? order.attempt : "";
    return true;
  }
  // RunLog
  RunHistory history(double time) override { return history_from(events, time); }
  void append(RunEvent event, const std::string& attempt) override {
    event.time = wall();
    event.attempt = attempt;
    events.push_back(std::move(event));
  }
  int64_t newest_checkpoint() override { return checkpoint; }
  int64_t reached_step(const std::string&) override { return reached; }
  bool has_begun(const std::string& attempt) override {
    return std::any_of(events.begin(), events.end(),
                       [&](const RunEvent& e) { return e.kind == RunEventKind::kBegin && e.attempt == attempt; });
  }
  std::optional<RunEvent> first_cause(const std::string&) override { return cause; }
  std::vector<RunEvent> stragglers(const std::string& attempt) override { return stragglers_of(events, attempt); }
  std::vector<std::string> suspects(const std::string&) override { return suspect_hosts; }
  Thresholds thresholds() override { return given; }

 private:
  AgentReport report_of(SimulatedNode& node) {
    AgentReport report = node.report;
    const bool trains = !report.attempt.empty() && !ranks;
    if (trains) report.ranks = node.ranks;
    for (PortSight& port : node.ports)
      if (trains && port.name != kIdlePort) port.sent += 10 << 20;
    report.left = report.attempt.empty() ? node.leftovers : 0;
    report.gpus = node.gpus;
    report.ports = node.ports;
    return report;
  }

  const int ranks_per_node_;
  static constexpr int kTurns = 5;  // of the driver, per second
  int turns_ = 0;
};

}  // namespace tri
