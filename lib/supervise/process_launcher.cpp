#include "lib/supervise/process_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <utility>

#include "io/base/file.h"
#include "io/base/log.h"
#include "lib/supervise/agent.h"
#include "lib/supervise/node_processes.h"

namespace tri {
namespace {

// Returns a descriptor from which `text` can be read, or -1.
int input_of(const std::string& text) {
  const int file = ::memfd_create("input", MFD_CLOEXEC);
  if (file < 0) return -1;
  if (::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::lseek(file, 0, SEEK_SET) == 0)
    return file;
  ::close(file);
  return -1;
}

pid_t g_driver = 0;  // set in a child that has not executed its command yet

// The handler of SIGUSR1 before the command runs. A signal that a scheduler sends to every process of the job also
// reaches the driver, which passes it on once the command runs. If the driver has died, nothing would pass it on: the
// child exits, before there are any ranks.
void end_without_driver(int) {
  if (::getppid() != g_driver) ::_exit(1);
}

struct Started {
  pid_t process = -1;   // -1: no process could be created
  Descriptor executes;  // readable once the command runs or the child has ended; -1: unknown
};

// Starts a separate process group: signals from a terminal or to the driver's group are handled by the driver. If the
// driver dies, ranks are signalled to save a checkpoint and exit. `input`: the contents of its standard input.
Started start(const std::vector<std::string>& words, const std::vector<std::string>& environment,
              const std::string& input) {
  std::vector<char*> argv, envp;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  for (const std::string& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
  envp.push_back(nullptr);
  const pid_t driver = ::getpid();
  const Descriptor input_fd(input.empty() ? -1 : input_of(input));
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) ends[0] = ends[1] = -1;
  Descriptor executes(ends[0]);
  const Descriptor open_until_then(ends[1]);
  const pid_t child = ::fork();
  if (child != 0) {
    if (child > 0) ::setpgid(child, child);
    return {child, std::move(executes)};
  }
  g_driver = driver;
  ::signal(SIGUSR1, end_without_driver);
  ::signal(SIGTERM, SIG_DFL);  // sent by end_ranks()
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
  if (::getppid() != driver) ::_exit(1);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int in = input_fd.get() >= 0 ? input_fd.get() : ::open("/dev/null", O_RDONLY);
  if (in >= 0) ::dup2(in, STDIN_FILENO);
  environ = envp.data();
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

void signal_group(pid_t process, int signal) {
  if (process > 0) ::kill(-process, signal);
}

std::vector<std::string> blank_separated(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

LaunchCommands slurm_commands(const SlurmShape& shape) {
  const auto step = [](const std::vector<std::string>& nodes, int tasks_per_node) {
    const auto count = static_cast<int>(nodes.size());
    return std::vector<std::string>{"srun",
                                    "--overlap",
                                    fmt::format("--nodes={}", count),
                                    fmt::format("--ntasks={}", count * tasks_per_node),
                                    fmt::format("--ntasks-per-node={}", tasks_per_node),
                                    "--nodelist=" + joined(nodes),
                                    "--mem=0",
                                    "--kill-on-bad-exit=0"};
  };
  LaunchCommands commands;
  commands.agents = [=](const std::vector<std::string>& nodes) {
    auto words = step(nodes, 1);
    for (const char* word : {"--no-kill", "--mpi=none", "--cpus-per-task=1", "--wait=0"}) words.push_back(word);
    return std::vector<LaunchCommands::Words>{words};
  };
  commands.ranks = [=](const std::vector<std::string>& nodes) {
    auto words = step(nodes, shape.ranks_per_node);
    for (const std::string& word :
         {std::string("--mpi=pmix"), std::string("--distribution=block:block"), std::string("--cpu-bind=cores"),
          std::string("--gpu-bind=none"), fmt::format("--cpus-per-task={}", shape.cpus_per_rank),
          fmt::format("--wait={:.0f}", shape.straggler_seconds)})
      words.push_back(word);
    words.insert(words.end(), shape.options.begin(), shape.options.end());
    return words;
  };
  return commands;
}

LaunchCommands own_commands(const std::string& ranks, const std::string& agent) {
  const auto filled = [](std::vector<std::string> words, const std::string& field, const std::string& value) {
    for (std::string& word : words)
      for (size_t at = 0; (at = word.find(field, at)) != word.npos; at += value.size())
        word.replace(at, field.size(), value);
    return words;
  };
  LaunchCommands commands;
  commands.secret_on_input = true;
  commands.agents = [=, words = blank_separated(agent)](const std::vector<std::string>& nodes) {
    std::vector<LaunchCommands::Words> each;
    for (const std::string& node : nodes) each.push_back(filled(words, "{node}", node));
    return each;
  };
  commands.ranks = [=, words = blank_separated(ranks)](const std::vector<std::string>& nodes) {
    return filled(words, "{nodes}", joined(nodes));
  };
  return commands;
}

ProcessLauncher::~ProcessLauncher() {
  signal_group(ranks_, SIGKILL);
  for (const AgentStart& agent : agents_) signal_group(agent.process, SIGKILL);
}

void ProcessLauncher::start_agents(const std::vector<std::string>& nodes) {
  reap();
  std::string input;
  auto secret = setup_.secret;
  secret.push_back(fmt::format("{}={}", kStartVariable, ++agent_starts_));
  for (const std::string& entry : secret)
    if (setup_.commands.secret_on_input) input += entry + "\n";
  auto commands = setup_.commands.agents(nodes);
  for (size_t i = 0; i < commands.size(); ++i) {
    auto& words = commands[i];
    words.insert(words.end(), setup_.agent.begin(), setup_.agent.end());
    const std::string node = commands.size() == nodes.size() ? nodes[i] : "";
    const pid_t process = start(words, secret, input).process;
    if (process > 0)
      agents_.push_back({process, node});
    else
      log_error("supervise: cannot start a process for an agent: {}", std::strerror(errno));
    newest_[node] = process;
  }
}

std::vector<std::string> ProcessLauncher::failed_agents() {
  reap();
  return std::exchange(failed_, {});
}

// Only the environment of the ranks contains the attempt's markers, not the launcher's: `env` sets them.
void ProcessLauncher::start_ranks(const RanksStart& start_of) {
  auto words = setup_.commands.ranks(start_of.nodes);
  words.insert(words.end(), {"env", std::string(kAttemptVariable) + "=" + start_of.attempt,
                             std::string(kSupervisedVariable) + "=" + setup_.run_dir, "TRIREME_JOB=" + setup_.job,
                             fmt::format("TRIREME_RESTART={}", start_of.number)});
  words.insert(words.end(), setup_.marks.begin(), setup_.marks.end());
  words.insert(words.end(), setup_.ranks.begin(), setup_.ranks.end());
  status_.reset();
  Started started = start(words, {}, "");
  ranks_ = started.process;
  executes_ = std::move(started.executes);
  drains_ = false;
  if (ranks_ < 0) status_ = 1;
}

std::optional<int> ProcessLauncher::ranks_status() {
  int status = 0;
  pass_drain_on();
  if (!status_ && ranks_ > 0 && ::waitpid(ranks_, &status, WNOHANG) == ranks_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ranks_ = -1;
  }
  return status_;
}

void ProcessLauncher::drain_ranks() {
  drains_ = true;
  pass_drain_on();
}

// srun and mpirun pass USR1 on to the ranks; a process that has not executed them yet would not.
void ProcessLauncher::pass_drain_on() {
  pollfd end{executes_.get(), POLLIN, 0};
  if (!drains_ || ranks_ <= 0 || (executes_.get() >= 0 && ::poll(&end, 1, 0) == 0)) return;
  drains_ = false;
  ::kill(ranks_, SIGUSR1);
}

void ProcessLauncher::end_ranks(End how) { signal_group(ranks_, how == End::kRequest ? SIGTERM : SIGKILL); }

void ProcessLauncher::reap() {
  std::erase_if(agents_, [&](const AgentStart& agent) {
    int status = 0;
    if (::waitpid(agent.process, &status, WNOHANG) != agent.process) return false;
    if (status != 0 && !agent.node.empty() && newest_[agent.node] == agent.process) failed_.push_back(agent.node);
    return true;
  });
}

}  // namespace tri
