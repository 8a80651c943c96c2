// The driver of a large run with all its agents: N agents in one other process, each with its own connection and one
// report per second like that of a node with eight GPUs. The driver's side is real: AgentServer and Supervisor, with a
// simulated launcher and run folder.
//
//   supervise_fleet AGENTS SECONDS [MOST]
//
// Counts must agree: every report sent is handled, every order arrives, no agent is refused or lost. MOST, a share of a
// core, is the limit for the driver (soak.sh fleet: 0.1); without it the figures are only printed.
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "lib/supervise/agent_server.h"
#include "lib/supervise/supervisor.h"
#include "tests/supervise/simulated_agent.h"

namespace tri {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string node_name(int i) { return fmt::format("node{:05}", i); }

struct Counts {
  int64_t reports = 0, bytes = 0, watched = 0, closed = 0;
};

std::unique_ptr<SimulatedAgent> make_agent(int port, const JobToken& token, int i) {
  auto agent = std::make_unique<SimulatedAgent>(port, token, node_name(i), 1);
  AgentReport& report = agent->report;
  for (int k = 0; k < 8; ++k) {
    report.ranks.push_back({.world_rank = 8 * i + k, .process = 1000 + k, .state = ProcessState::kRuns});
    report.gpus.push_back({.pci = fmt::format("0000:{:02x}:00.0", 16 + k), .nvlinks_up = 18});
    report.ports.push_back({.name = fmt::format("mlx5_{}:1", k)});
  }
  return agent;
}

// The agents' process: agents connect in turn, 400 per second, and then report once per second until the driver sends
// leave. Messages from the driver are read within milliseconds, as by separate agents.
Counts play_agents(int port, const JobToken& token, int number) {
  std::vector<std::unique_ptr<SimulatedAgent>> agents(static_cast<size_t>(number));
  Counts counts;
  std::vector<double> due(static_cast<size_t>(number));
  const double begin = seconds_now();
  for (int i = 0; i < number; ++i) due[static_cast<size_t>(i)] = begin + i / 400.0;
  bool leaves = false;
  while (!leaves) {
    for (int i = 0; i < number && !leaves; ++i) {
      double& next = due[static_cast<size_t>(i)];
      const bool is_due = seconds_now() >= next;
      std::unique_ptr<SimulatedAgent>& place = agents[static_cast<size_t>(i)];
      if (!place && is_due) place = make_agent(port, token, i);
      if (!place || !place->is_open() || (place->is_greeted() && !is_due)) continue;
      SimulatedAgent& agent = *place;
      agent.pump();
      for (const AgentOrder& order : agent.orders) {
        leaves |= order.kind == OrderKind::kLeave || order.kind == OrderKind::kFinish;
        agent.report.order = std::max(agent.report.order, order.number);
        if (order.kind == OrderKind::kWatch) agent.report.attempt = order.attempt, ++counts.watched;
      }
      agent.orders.clear();
      if (!agent.is_greeted()) continue;
      for (RankSight& rank : agent.report.ranks) rank.step += 1, rank.progress += 100;
      agent.send_report();
      ++counts.reports;
      next += 1;
    }
    ::poll(nullptr, 0, 2);
  }
  for (const auto& agent : agents) {
    if (!agent) continue;
    counts.bytes += agent->sent;
    counts.closed += !agent->is_open();
  }
  return counts;
}

class SimulatedRun : public Launcher, public AgentLink, public RunLog {
 public:
  explicit SimulatedRun(AgentServer& server) : server_(server) {}
  bool runs = false;

  void start_agents(const std::vector<std::string>&) override {}
  std::vector<std::string> failed_agents() override { return {}; }
  void start_ranks(const RanksStart&) override { runs = true; }
  std::optional<int> ranks_status() override { return status; }
  void drain_ranks() override { status = 75; }
  void end_ranks(End) override { status = 143; }
  bool send(const std::string& node, const AgentOrder& order) override { return server_.send(node, order); }
  RunHistory history(double) override { return {}; }
  void append(RunEvent event, const std::string&) override { exclusions += event.kind == RunEventKind::kExclusion; }
  int64_t newest_checkpoint() override { return 0; }
  int64_t reached_step(const std::string&) override { return 0; }
  bool has_begun(const std::string&) override { return true; }
  std::optional<RunEvent> first_cause(const std::string&) override { return std::nullopt; }
  std::vector<RunEvent> stragglers(const std::string&) override { return {}; }
  std::vector<std::string> suspects(const std::string&) override { return {}; }
  Thresholds thresholds() override { return {}; }

  std::optional<int> status;
  int exclusions = 0;

 private:
  AgentServer& server_;
};

Moment moment() { return {.monotonic = seconds_now(), .wall = wall_seconds()}; }

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

double resident_mib() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0;
  in >> all >> resident;
  return static_cast<double>(resident) * 4096 / 1048576;
}

int fleet(int number, double seconds, double most) {
  allow_open_files(2 * number + 100);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < static_cast<rlim_t>(number) + 50) {
    fmt::print("supervise_fleet: {} agents need as many open files, and {} are allowed (ulimit -Hn)\n", number,
               files.rlim_cur);
    return 2;
  }
  const JobToken token = new_token();
  auto opened = AgentServer::open(token, 0, {}, seconds_now);
  if (!opened) return fmt::print("{}\n", opened.error().message), 2;
  AgentServer& server = *opened.value();
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return 2;
  const double memory_before = resident_mib();
  const pid_t agents = ::fork();
  if (agents == 0) {
    const Counts counts = play_agents(server.port(), token, number);
    const bool reported = ::write(pipe_ends[1], &counts, sizeof counts) == static_cast<ssize_t>(sizeof counts);
    ::_exit(reported ? 0 : 1);
  }

  SimulatedRun run(server);
  Supervisor::Setup setup{.nodes_needed = number};
  for (int i = 0; i < number; ++i) setup.nodes.push_back(node_name(i));
  Supervisor supervisor(setup, run, run, run);
  int64_t handled = 0, measured = 0;
  double ticked = 0, began = 0, cpu = 0, last_heard = seconds_now();
  const double timeout = seconds + 120;
  const auto turn = [&] {  // like run_driver
    for (const AgentReport& report : server.poll(200)) {
      supervisor.take(report, moment());
      ++handled, last_heard = seconds_now();
    }
    if (seconds_now() - ticked < kTickSeconds) return;
    ticked = seconds_now();
    supervisor.tick(moment());
  };
  for (const double start = seconds_now(); seconds_now() - start < timeout;) {
    turn();
    if (run.runs && began == 0) began = seconds_now(), cpu = cpu_seconds(), measured = handled;
    if (began > 0 && seconds_now() - began >= seconds) break;
  }
  const double wall = seconds_now() - began, used = cpu_seconds() - cpu, memory = resident_mib() - memory_before;
  measured = handled - measured;
  supervisor.stop_requested(moment());
  run.status = 75;
  // Runs until the agents have exited and their messages are handled.
  Counts sent;
  int status = 1;
  for (const double start = seconds_now(); seconds_now() - start < timeout;) {
    turn();
    if (::waitpid(agents, &status, WNOHANG) == agents) break;
  }
  if (::read(pipe_ends[0], &sent, sizeof sent) != static_cast<ssize_t>(sizeof sent)) ::kill(agents, SIGKILL);
  while (handled < sent.reports && seconds_now() - last_heard < 10) turn();

  fmt::print("{} agents: {:.0f} reports a second of {:.0f} bytes; {:.1f} % of a core, {:.1f} us a report; {:.1f} MiB\n",
             number, static_cast<double>(measured) / wall,
             static_cast<double>(sent.bytes) / static_cast<double>(std::max<int64_t>(sent.reports, 1)),
             100 * used / wall, 1e6 * used / static_cast<double>(std::max<int64_t>(measured, 1)), memory);
  int failures = 0;
  const auto expect = [&](bool holds, const std::string& what) {
    if (holds) return;
    ++failures;
    fmt::print("FAILED: {}\n", what);
  };
  expect(began > 0, "the run has not begun");
  expect(handled == sent.reports, fmt::format("{} reports were sent, {} were handled", sent.reports, handled));
  expect(sent.closed == 0, fmt::format("{} connections were closed", sent.closed));
  expect(sent.watched >= number, fmt::format("{} of {} agents got the attempt", sent.watched, number));
  expect(run.exclusions == 0, fmt::format("{} nodes were excluded", run.exclusions));
  if (most > 0) expect(used / wall < most, fmt::format("the driver may take {:.0f} % of a core", 100 * most));
  fmt::print("supervise_fleet: {}\n", failures == 0 ? "PASSED" : "FAILED");
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print("usage: supervise_fleet AGENTS SECONDS [MOST]\n"), 2;
  return tri::fleet(std::atoi(argv[1]), std::atof(argv[2]), argc > 3 ? std::atof(argv[3]) : 0);
}
