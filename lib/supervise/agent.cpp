#include "lib/supervise/agent.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/host.h"
#include "io/checkpoint/memory_segment.h"
#include "io/flight_recorder/flight_recorder.h"
#include "io/net/socket.h"
#include "lib/supervise/agent_messages.h"
#include "lib/supervise/node_doctor.h"
#include "lib/supervise/node_health.h"
#include "lib/supervise/node_processes.h"
#include "lib/supervise/slurm_daemon.h"
#include "lib/supervise/slurm_job.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kConnectSeconds = 3;
constexpr double kGreetingSeconds = 15;  // the driver may have to accept 1,500 agents, or a flood of other connections
constexpr double kOrphanSeconds = 3600;
constexpr size_t kMostLines = 16;
// Seconds between reports; shorter for a while after an attempt's end, because the next attempt waits for them.
constexpr double kTurn = 1, kTurnAtEnd = 0.2, kEndTakes = 5;

// A connection to the driver that both ends have authenticated.
class Connection {
 public:
  static std::unique_ptr<Connection> open(const AgentOptions& options) {
    for (const std::string& address : options.addresses) {
      Descriptor socket = connect_to({address, options.port}, kConnectSeconds);
      if (socket.get() < 0) continue;
      std::array<char, 24> greeting;
      if (!receive_exactly(socket.get(), greeting.data(), greeting.size(), deadline_in(kGreetingSeconds)) ||
          std::string_view(greeting.data(), kGreeting.size()) != kGreeting)
        continue;
      Nonce of_driver;
      std::memcpy(of_driver.data(), greeting.data() + kGreeting.size(), sizeof of_driver);
      const Nonce own = random_nonce();
      if (!send_all(socket.get(), {reinterpret_cast<const char*>(own.data()), sizeof own}, kConnectSeconds)) continue;
      return std::unique_ptr<Connection>(new Connection(std::move(socket), session_key(options.token, of_driver, own)));
    }
    return nullptr;
  }

  bool send(const AgentHello& hello) {
    return send_all(socket_.get(), writer_.frame(to_bytes(hello)), kConnectSeconds);
  }
  bool send(const AgentReport& report) {
    return send_all(socket_.get(), writer_.frame(to_bytes(report)), kConnectSeconds);
  }

  // Appends the orders that arrive within `milliseconds`. Returns false if the connection has ended.
  bool take(int milliseconds, std::vector<AgentOrder>& orders) {
    if (!is_ready(socket_.get(), POLLIN, deadline_in(1e-3 * milliseconds))) return true;
    std::array<char, 4096> bytes;
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    reader_.feed({bytes.data(), static_cast<size_t>(got)});
    std::string payload;
    while (true) {
      const auto outcome = reader_.next(payload);
      if (outcome != FrameReader::Outcome::kFrame) return outcome == FrameReader::Outcome::kIncomplete;
      const auto order = order_from(payload);  // authenticated, so from the driver
      if (!order) return false;                // ... but of another build
      orders.push_back(*order);
    }
  }

 private:
  Connection(Descriptor socket, const SipKey& key)
      : socket_(std::move(socket)),
        writer_(key, Direction::kToDriver),
        reader_(key, Direction::kToAgent, kMaxPayload) {}
  Descriptor socket_;
  FrameWriter writer_;
  FrameReader reader_;
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        run_{options.run_dir, slurm_node(), host_name(), std::filesystem::path(options.program).filename()},
        doctor_(options.program) {}

  int run() {
    kill_earlier_agents(options_.program, options_.run_dir, options_.node);
    std::unique_ptr<Connection> connection;
    while (seconds_since(heard_) < options_.gone_seconds || awaits_batch_host()) {
      if (!connection && (connection = Connection::open(options_)) && !connection->send(hello())) connection.reset();
      const auto turn = Clock::now();
      // If the driver closes the connection, it has another agent here or is gone: nothing may be killed then.
      std::vector<AgentOrder> before;
      if (connection && !connection->take(0, before)) connection.reset();
      for (const AgentOrder& order : before) {
        if (leaves(order)) return 0;
        carry_out(order);
      }
      if (connection && !connection->send(report())) connection.reset();
      const bool awaited = attempt_.empty() && ended_ && seconds_since(*ended_) < kEndTakes;
      const double length = awaited ? kTurnAtEnd : kTurn;
      while (seconds_since(turn) < length) {
        std::vector<AgentOrder> orders;
        const auto left = [&] { return std::max(1, static_cast<int>(1000 * (length - seconds_since(turn)))); };
        if (connection && !connection->take(left(), orders)) connection.reset();
        if (!connection) ::poll(nullptr, 0, left());
        bool again = false;
        for (const AgentOrder& order : orders) {
          if (leaves(order)) return 0;
          again |= carry_out(order);
        }
        if (again) break;  // the driver waits for the report
      }
    }
    return static_cast<int>(ExitCode::kComm);
  }

 private:
  static std::string slurm_node() {
    const char* node = std::getenv("SLURMD_NODENAME");
    return node == nullptr ? "" : node;
  }

  static bool slurm_job() { return std::getenv("SLURM_JOB_ID") != nullptr; }

  // If a job loses the node of its batch script, and with it the driver, nothing else is left to requeue it (it was
  // submitted with --no-kill), so its agents do that. Until Slurm has noticed the loss of the node, they query it now
  // and then. Each first waits for a random time, so that the agents of a large job do not query at once.
  bool awaits_batch_host() {
    if (seconds_since(heard_) > kOrphanSeconds || options_.job.empty()) return false;
    if (!asks_) {
      asks_ = true;
      asked_ = Clock::now();
      ask_after_ = first_question(options_.num_nodes, chance());
    }
    if (seconds_since(asked_) < ask_after_) return true;
    asked_ = Clock::now();
    ask_after_ = next_question(options_.num_nodes, chance());
    switch (orphan_state(options_.job, options_.restart)) {
      case OrphanState::kOver:
        return false;
      case OrphanState::kBatchHostLost:
        put_back(options_.job);
        return false;
      case OrphanState::kUnknown:
        return true;
    }
    return true;
  }

  static double chance() { return static_cast<double>(random_nonce()[0] >> 11) * 0x1p-53; }  // in [0, 1)

  bool leaves(const AgentOrder& order) const {
    if (order.kind == OrderKind::kFinish) remove_segments(flight_record_folder(), run_.run_dir, run_.host);
    return order.kind == OrderKind::kLeave || order.kind == OrderKind::kFinish;
  }

  bool carry_out(const AgentOrder& order) {
    heard_ = Clock::now();
    asks_ = false;
    if (order.kind == OrderKind::kPulse || order.number <= order_) return false;
    order_ = order.number;
    if (order.kind == OrderKind::kDoctor)
      doctor_.start(order.timeout, other_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), health_.last().gpus.size()));
    if (order.kind == OrderKind::kWatch) watched_ = order.attempt;
    if (order.kind == OrderKind::kEnd) {
      ended_ = Clock::now();
      sees_run_ = sees_run_folder(options_.run_dir);
    }
    if (order.kind != OrderKind::kDoctor) attempt_ = order.kind == OrderKind::kWatch ? order.attempt : "";
    sweeps_ = ranks_begin_ = true;
    return true;
  }

  AgentHello hello() const {
    return {.node = options_.node, .host = run_.host, .start = options_.start, .layout = messages_layout()};
  }

  AgentReport report() {
    AgentReport report{.node = options_.node, .host = run_.host, .start = options_.start, .attempt = attempt_};
    report.order = order_;
    const std::vector<RankRecord> records = records_of(run_);
    if (!attempt_.empty()) report.ranks = ranks(records);
    report.failure = first_failure(records, watched_);
    report.watched = watched_;
    for (const RankRecord& record : records)
      if (record.attempt == watched_) report.step = std::max(report.step, record.step);
    report.sees_run = sees_run_;
    // Repeats until nothing of other attempts is left: their processes may still start new ones.
    if (sweeps_) {
      report.left = kill_leftovers(run_, records, attempt_);
      sweeps_ = report.left > 0 || attempt_.empty();
    }
    report.doctor_status = doctor_.status();
    report.lines = doctor_.take_findings();
    const HealthWatch::Seen seen = health_.last();
    report.ports = seen.ports;
    report.gpus = seen.gpus;
    report.gpu_age = seen.gpus.empty() ? 0 : seen.age;
    report.daemon_gone = daemon_.gone_seconds();
    add_lines(records, report);
    keep_within_a_frame(report);
    return report;
  }

  // Scans all processes of the node only while ranks start: later, every rank that can have a flight recorder has one.
  std::vector<RankSight> ranks(std::span<const RankRecord> records) {
    std::vector<RankSight> ranks = sighted_ranks(records, attempt_);
    if (!ranks_begin_) return ranks;
    const std::vector<RankSight> others = ranks_without_record(run_, records, attempt_);
    ranks_begin_ = ranks.empty() || !others.empty();
    for (const RankSight& rank : ranks) ranks_begin_ &= rank.phase == RunPhase::kSetup;
    ranks.insert(ranks.end(), others.begin(), others.end());
    return ranks;
  }

  // Adds each line once. XIDs in the kernel log count like those from NVML.
  void add_lines(std::span<const RankRecord> records, AgentReport& report) {
    std::vector<std::string> lines = kernel_.lines();
    for (const std::string& line : lines)
      if (const KernelXid xid = kernel_xid(line); !xid.pci.empty()) add_xid(kernel_xids_[xid.pci], xid.xid);
    std::erase_if(lines, [](const std::string& line) { return !is_alarming(line); });
    if (!attempt_.empty())
      for (std::string& line : alarming_lines(records, attempt_))
        if (said_.insert(line).second) lines.push_back(std::move(line));
    if (said_.size() > 1000) said_.clear();
    for (const GpuSight& gpu : report.gpus)
      if (std::exchange(slowed_[gpu.pci], gpu.slowed) != gpu.slowed)
        lines.push_back(fmt::format("GPU {} is {}", gpu.pci,
                                    gpu.slowed ? "throttled by heat or by its power supply" : "no longer throttled"));
    report.lines.resize(std::min(report.lines.size(), kMostLines));
    if (const bool silent = report.gpu_age > kGpuSilentSeconds; std::exchange(gpus_silent_, silent) != silent)
      lines.push_back(silent ? fmt::format("the GPU driver has not responded for {:.0f} s", report.gpu_age)
                             : "the GPU driver responds again");
    if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - kMostLines);
    report.lines.insert(report.lines.end(), lines.begin(), lines.end());
    const bool are_known = !report.gpus.empty();  // the list omits those of other jobs
    for (const auto& [pci, of_kernel] : kernel_xids_) {
      auto at = std::find_if(report.gpus.begin(), report.gpus.end(),
                             [&, &id = pci](const GpuSight& g) { return g.pci == id; });
      if (at == report.gpus.end() && are_known) continue;
      if (at == report.gpus.end()) at = report.gpus.insert(at, GpuSight{.pci = pci, .recovery_action = -1});
      if (at->num_xids > 0) continue;
      at->xids = of_kernel.xids;
      at->num_xids = of_kernel.num_xids;
    }
  }

  AgentOptions options_;
  RunOnNode run_;
  NodeDoctor doctor_;
  SlurmDaemon daemon_{slurm_job() ? slurm_node() : ""};
  HealthWatch health_;
  KernelLog kernel_;
  std::map<std::string, GpuSight> kernel_xids_;  // by PCI id; only the XIDs are set
  std::map<std::string, bool> slowed_;           // GPUs, by PCI id
  bool gpus_silent_ = false;
  std::set<std::string> said_;
  std::string attempt_, watched_;  // attempt_: the current one; watched_: the current or the previous one
  uint64_t order_ = 0;
  bool sweeps_ = false, ranks_begin_ = false, sees_run_ = true, asks_ = false;
  Clock::time_point heard_ = Clock::now(), asked_ = heard_;
  std::optional<Clock::time_point> ended_;  // the last attempt, by an order; none yet
  double ask_after_ = 0;
};

// Reads "NAME=value" lines from standard input into the environment: ssh passes on the input, but no environment.
void take_input() {
  constexpr double kTimeout = 10;  // seconds, between two reads
  constexpr size_t kMost = 65536;
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < kMost && is_ready(STDIN_FILENO, POLLIN, deadline_in(kTimeout))) {
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    for (const char* name : {kTokenVariable, kDriverVariable, kStartVariable})
      if (line.rfind(std::string(name) + "=", 0) == 0) ::setenv(name, line.c_str() + std::strlen(name) + 1, 0);
}

}  // namespace

Result<AgentOptions> agent_options(const std::string& run_dir, const std::string& program) {
  if (std::getenv(kTokenVariable) == nullptr && ::isatty(STDIN_FILENO) == 0) take_input();
  const char *token = std::getenv(kTokenVariable), *driver = std::getenv(kDriverVariable),
             *node = std::getenv("SLURMD_NODENAME");
  const auto parsed = token_from(token == nullptr ? "" : token);
  if (!parsed || driver == nullptr)
    return usage_error(
        "--agent requires {} and {} in the environment, which `trireme supervise` sets when it starts an agent; "
        "run that without --agent",
        kTokenVariable, kDriverVariable);
  AgentOptions options{
      .run_dir = run_dir, .node = node == nullptr ? host_name() : node, .program = program, .token = *parsed};
  if (const char* start = std::getenv(kStartVariable)) options.start = std::atoll(start);
  if (const char* nodes = std::getenv("SLURM_JOB_NUM_NODES")) options.num_nodes = std::max(1, std::atoi(nodes));
  if (const char* job = std::getenv("SLURM_JOB_ID")) options.job = job;
  if (const char* restart = std::getenv("SLURM_RESTART_COUNT")) options.restart = std::atoi(restart);
  std::istringstream in(driver);
  in >> options.port;
  for (std::string address; in >> address;) options.addresses.push_back(address);
  if (options.addresses.empty())
    return usage_error("{}='{}': expected a port and at least one address", kDriverVariable, driver);
  ::unsetenv(kTokenVariable);  // processes that the agent starts must not see it
  return options;
}

int run_agent(const AgentOptions& options) {
  // The driver ends the agent; signals to the whole job are meant for the ranks.
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT, SIGHUP, SIGPIPE}) ignore_signal(signal);
  return Agent(options).run();
}

}  // namespace tri
