#include "lib/supervise/driver.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <chrono>

#include "io/base/clock.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/checkpoint/folder.h"
#include "lib/fault/stop_signals.h"
#include "lib/supervise/agent.h"
#include "lib/supervise/agent_server.h"

namespace tri {
namespace {

constexpr int kTurnMilliseconds = 200;
constexpr double kLeaveSeconds = 5;  // agents have to leave when the run is over


Moment now() { return {.monotonic = monotonic_seconds(), .wall = wall_seconds()}; }

// Of this machine, as others reach it; the loopback's last.
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

class ServerLink : public AgentLink {
 public:
  explicit ServerLink(AgentServer& server) : server_(server) {}
  bool send(const std::string& node, const AgentOrder& order) override { return server_.send(node, order); }

 private:
  AgentServer& server_;
};

}  // namespace

Result<int> run_driver(const DriverOptions& options) {
  const JobToken token = new_token();
  auto opened =
      AgentServer::open(token, 0, {}, monotonic_seconds,
                        options.one_machine ? AgentServer::Reach::kThisMachine : AgentServer::Reach::kAnyMachine);
  if (!opened) return opened.error();
  AgentServer& server = *opened.value();
  allow_open_files(static_cast<int64_t>(options.setup.nodes.size()) + 1024);

  const std::string job = options.job.empty() ? "supervised-" + new_attempt() : options.job;
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
  RunFolderBook book(options.run_dir, options.checkpoint_dir, job);
  Supervisor::Setup setup = options.setup;
  setup.run_dir = options.run_dir;
  setup.job = job;
  setup.host = host_name();
  Supervisor supervisor(setup, launcher, link, book);
  log_info("supervise: {} of {} nodes are needed; agents talk to port {} of {}", options.setup.nodes_needed,
           options.setup.nodes.size(), server.port(), host_name());

  StopSignals signals;
  double ticked = 0;
  while (!supervisor.status()) {
    for (const AgentReport& report : server.poll(kTurnMilliseconds)) supervisor.take(report, now());
    for (const std::string& node : server.take_foreign()) supervisor.agent_of_another_build(node, now());
    if (monotonic_seconds() - ticked < kTickSeconds) continue;
    ticked = monotonic_seconds();
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
