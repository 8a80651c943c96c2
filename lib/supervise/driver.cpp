#include "lib/supervise/driver.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "io/base/clock.h"
#include "io/base/format.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/mutex.h"
#include "io/base/retry.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/run_lock.h"
#include "lib/fault/stop_signals.h"
#include "lib/supervise/agent.h"
#include "lib/supervise/agent_server.h"

namespace tri {
namespace {

constexpr int kTurnMilliseconds = 200;
constexpr double kLeaveSeconds = 5;  // time for the agents to exit when the run is over

constexpr double kCheckLockSeconds = 10;
constexpr std::chrono::milliseconds kStorageTimeout{2000};

Moment now() { return {.monotonic = monotonic_seconds(), .wall = wall_seconds()}; }

// Returns the addresses of this machine, those of the loopback last.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses, own;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {"127.0.0.1"};
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (one->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) continue;
      ::inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof text);
    } else {
      continue;
    }
    ((one->ifa_flags & IFF_LOOPBACK) != 0 ? own : addresses).push_back(text);
  }
  ::freeifaddrs(all);
  addresses.insert(addresses.end(), own.begin(), own.end());
  return addresses;
}

// The lock that excludes other drivers of the run.
class DriverLock {
 public:
  // Call before the first order, which would end the ranks of another driver.
  static Result<DriverLock> take(const DriverOptions& options) {
    DriverLock lock(options);
    auto taken = retried({}, [&] { return lock.take_file(); });
    if (!taken) return taken.error();
    lock.file_ = std::make_shared<RunLock>(std::move(taken).value());
    // Ranks of an earlier driver may be ended; other ranks may not.
    const std::string path = options.run_dir + "/run.lock";
    const auto ranks = retried({}, [&] { return holder_of_lock(path, options.start); });
    if (!ranks) return ranks.error();
    if (!ranks.value() || lock.has_started(*ranks.value())) return lock;
    return file_error(
        "{}: the run folder is in use by {}, which was not started by a driver of this run; wait for it, stop it, or "
        "choose another run.dir{}",
        path, ranks.value()->text, stale_lock_remedy(*ranks.value()));
  }

  // Fails if another driver has taken over the run. Storage that does not respond is not an error.
  Result<void> check() {
    const std::string path = options_.run_dir + "/supervise.lock";
    const auto kept = within(
        path, kStorageTimeout, [file = file_] { return file->check(); }, Result<void>());
    if (kept || kept.error().os_error != 0) return {};
    // The file may have been removed. If the lock is taken too late for this call, the next call uses it.
    const auto take = [retaken = retaken_, dir = options_.run_dir, attempt = attempt_, start = options_.start] {
      {
        const MutexLock lock(retaken->mutex);
        if (retaken->result && *retaken->result) return true;
      }
      auto result = RunLock::take_for_driver(dir, attempt, start);
      const MutexLock lock(retaken->mutex);
      retaken->result.emplace(std::move(result));
      return true;
    };
    if (!within(path + " (take)", kStorageTimeout, take, false)) return {};
    const MutexLock lock(retaken_->mutex);
    Result<RunLock>& again = *retaken_->result;
    if (!again && again.error().os_error != 0) return {};
    if (!again)
      return file_error("{}; this driver exits, since another one has taken over the run", again.error().message);
    log_warn("supervise: {}; the lock was taken again", kept.error().message);
    file_ = std::make_shared<RunLock>(std::move(again).value());
    retaken_->result.reset();
    return {};
  }

 private:
  struct Retaken {
    Mutex mutex;
    std::optional<Result<RunLock>> result TRI_GUARDED_BY(mutex);
  };

  explicit DriverLock(const DriverOptions& options) : options_(options) {}

  Result<RunLock> take_file() const { return RunLock::take_for_driver(options_.run_dir, attempt_, options_.start); }

  // Whether a driver of this run or of this job has started these ranks.
  bool has_started(const LockHolder& ranks) const {
    if (!options_.start.job.empty() && ranks.job == options_.start.job) return true;
    const auto events = read_events(options_.run_dir + "/events.jsonl");
    if (!events) return false;
    const RunHistory history = history_from(events.value(), wall_seconds());
    return std::any_of(history.attempts.begin(), history.attempts.end(),
                       [&](const PastAttempt& a) { return a.attempt == ranks.attempt; });
  }

  const DriverOptions& options_;
  std::string attempt_ = new_attempt();
  std::shared_ptr<RunLock> file_;
  std::shared_ptr<Retaken> retaken_ = std::make_shared<Retaken>();
};

class ServerLink : public AgentLink {
 public:
  explicit ServerLink(AgentServer& server) : server_(server) {}
  bool send(const std::string& node, const AgentOrder& order) override { return server_.send(node, order); }

 private:
  AgentServer& server_;
};

}  // namespace

Result<int> run_driver(const DriverOptions& options) {
  auto lock = DriverLock::take(options);
  if (!lock) return lock.error();
  const JobToken token = new_token();
  auto opened =
      AgentServer::open(token, 0, {}, monotonic_seconds,
                        options.one_machine ? AgentServer::Reach::kThisMachine : AgentServer::Reach::kAnyMachine);
  if (!opened) return opened.error();
  AgentServer& server = *opened.value();
  allow_open_files(static_cast<int64_t>(options.setup.nodes.size()) + 1024);

  const std::string job = options.start.job.empty() ? "supervised-" + new_attempt() : options.start.job;
  std::string driver = std::string(kDriverVariable) + "=" + std::to_string(server.port());
  for (const std::string& address : options.one_machine ? std::vector<std::string>{"127.0.0.1"} : own_addresses())
    driver += " " + address;
  ProcessLauncher launcher({.commands = options.commands,
                            .agent = {options.program, "supervise", "--agent", options.run_dir},
                            .ranks = options.ranks,
                            .run_dir = options.run_dir,
                            .job = job,
                            .secret = {std::string(kTokenVariable) + "=" + to_text(token), driver},
                            .marks = options.marks});
  ServerLink link(server);
  RunFolderLog event_log(options.run_dir, options.checkpoint_dir, job);
  Supervisor::Setup setup = options.setup;
  setup.run_dir = options.run_dir;
  setup.job = job;
  setup.host = host_name();
  Supervisor supervisor(setup, launcher, link, event_log);
  log_info("supervise: the run needs {} of {}; agents connect to port {} of {}", options.setup.nodes_needed,
           counted(std::ssize(options.setup.nodes), "node"), server.port(), host_name());

  StopSignals signals;
  double ticked = 0, checked = monotonic_seconds();
  while (!supervisor.status()) {
    for (const AgentReport& report : server.poll(kTurnMilliseconds)) supervisor.take(report, now());
    for (const std::string& node : server.take_foreign()) supervisor.agent_of_another_build(node, now());
    if (monotonic_seconds() - ticked < kTickSeconds) continue;
    ticked = monotonic_seconds();
    if (ticked - checked > kCheckLockSeconds) {
      checked = ticked;
      if (auto held = lock.value().check(); !held) return held.error();
    }
    if (signals.received() != 0) supervisor.stop_requested(now());
    supervisor.tick(now());
    launcher.reap();
  }
  for (const double end = monotonic_seconds() + kLeaveSeconds; launcher.agents_left() && monotonic_seconds() < end;) {
    server.poll(kTurnMilliseconds);
    launcher.reap();
  }
  return *supervisor.status();
}

}  // namespace tri
