#include "lib/supervise/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <sstream>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/poll.h"

namespace tri {
namespace {

constexpr double kTermSeconds = 10;  // from SIGTERM to SIGKILL
constexpr double kKillSeconds = 5;   // from SIGKILL until waiting for the process ends

// Waits for the child to exit. Returns false if it still runs. Polls, because waitpid has no timeout.
bool ends_within(double seconds, pid_t child, int& status) {
  constexpr std::chrono::milliseconds kPause{1}, kLongestPause{50};
  return poll_for(std::chrono::duration<double>(seconds), kPause, kLongestPause, [&] {
    const pid_t got = ::waitpid(child, &status, WNOHANG);
    return got == child || (got < 0 && errno != EINTR);
  });
}

CommandResult run_once(const std::vector<std::string>& words, double timeout, CommandErrors errors) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const Descriptor output(ends[0]);
  Descriptor input(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return {};
  if (child == 0) {  // async-signal-safe calls only: the caller may have threads
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDIN_FILENO);
    ::dup2(input.get(), STDOUT_FILENO);
    if (errors == CommandErrors::kDrop) ::dup2(null, STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  input.close();
  CommandResult result;
  const double end = monotonic_seconds() + timeout;
  char part[4096];
  for (bool open = true; open && !result.timed_out;) {
    const double left = end - monotonic_seconds();
    pollfd readable{output.get(), POLLIN, 0};
    const int ready = left > 0 ? ::poll(&readable, 1, static_cast<int>(std::min(left, 3600.0) * 1000) + 1) : 0;
    if (ready < 0 && errno == EINTR) continue;
    result.timed_out = ready <= 0 && monotonic_seconds() >= end;
    if (ready <= 0) continue;
    const ssize_t got = ::read(output.get(), part, sizeof part);
    if (got > 0) result.output.append(part, static_cast<size_t>(got));
    open = got > 0 || (got < 0 && errno == EINTR);
  }
  int status = 0;
  result.timed_out = result.timed_out || !ends_within(end - monotonic_seconds(), child, status);
  if (result.timed_out) {
    ::kill(child, SIGTERM);  // srun then ends its step
    if (!ends_within(kTermSeconds, child, status)) {
      ::kill(child, SIGKILL);
      // While storage hangs, a process blocked in the kernel does not end; stop waiting for it.
      (void)ends_within(kKillSeconds, child, status);
    }
    return result;
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, double timeout, CommandErrors errors) {
  CommandResult result;
  for (int runs = 0; runs < 4; ++runs) {
    result = run_once(words, timeout, errors);
    if (result.timed_out || result.status <= 128) break;
  }
  return result;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace tri
