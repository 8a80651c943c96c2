#include "io/base/process_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <iterator>
#include <sstream>
#include <utility>

#include "io/base/file.h"
#include "io/base/poll.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

// struct pidfd_info of linux/pidfd.h in its first version, which headers older than 6.13 do not have.
struct PidfdInfo {
  uint64_t mask, cgroup;
  uint32_t ids[11];
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kPidfdInfoExit = 1u << 3;

std::optional<int> status_behind(int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (::ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) != 0 || (info.mask & kPidfdInfoExit) == 0) return std::nullopt;
  return info.exit_code;
}

// Of a process that its parent has not waited for yet: the last field of its line in /proc.
std::optional<int> status_of_zombie(pid_t process) {
  const std::string text = text_of(fmt::format("/proc/{}/stat", process));
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos || text.size() < name_end + 3 || text[name_end + 2] != 'Z') return std::nullopt;
  std::istringstream fields(text.substr(name_end));
  int status = 0;
  bool any = false;
  for (std::string field; fields >> field; any = true)
    if (std::from_chars(field.data(), field.data() + field.size(), status).ec != std::errc()) status = 0;
  return any ? std::optional(status) : std::nullopt;
}

// The number after `name` in text of lines "name number".
std::optional<int64_t> number_after(std::string_view text, std::string_view name) {
  const size_t at = text.find(name);
  if (at == text.npos) return std::nullopt;
  int64_t value = 0;
  const char* const begin = text.data() + at + name.size();
  if (std::from_chars(begin, text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

}  // namespace

std::string signal_text(int signal) {
  constexpr std::pair<int, std::string_view> kNames[] = {
      {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
      {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
      {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
      {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
  const auto* const known =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& entry) { return entry.first == signal; });
  return fmt::format("signal {}{}", signal, known == std::end(kNames) ? "" : fmt::format(" ({})", known->second));
}

std::optional<int> wait_status_of(int pidfd, pid_t process) {
  // Between the parent's wait and the kernel's note of the status.
  constexpr std::chrono::milliseconds kTimeout{200}, kPause{5};
  std::optional<int> status;
  poll_for(kTimeout, kPause, [&] {
    status = status_of_zombie(process);
    if (!status) status = status_behind(pidfd);
    return status.has_value();
  });
  return status;
}

std::optional<int64_t> out_of_memory_kills() {
  std::istringstream groups(text_of("/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    const size_t path = line.find('/');
    if (path == line.npos) continue;
    if (line.starts_with("0::"))
      if (const auto kills =
              number_after(text_of("/sys/fs/cgroup" + line.substr(path) + "/memory.events"), "oom_kill "))
        return kills;
    if (line.find(":memory:") != line.npos)
      if (const auto kills =
              number_after(text_of("/sys/fs/cgroup/memory" + line.substr(path) + "/memory.oom_control"), "oom_kill "))
        return kills;
  }
  return std::nullopt;
}

bool names_out_of_memory_kill(std::string_view log, pid_t process) {
  return log.find(fmt::format("Killed process {} (", process)) != log.npos;
}

// A read of /dev/kmsg returns one record; a record that was overwritten meanwhile fails with EPIPE.
std::string kernel_log() {
  Descriptor log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (log.get() < 0) return "";
  std::string text;
  char record[8192];
  for (;;) {
    const ssize_t bytes = ::read(log.get(), record, sizeof record);
    if (bytes < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (bytes <= 0) return text;
    text.append(record, static_cast<size_t>(bytes));
  }
}

std::string ending_text(std::optional<int> status, bool out_of_memory) {
  if (!status) return "has ended without reporting an error";
  if (WIFEXITED(*status)) return fmt::format("exited with status {} without reporting an error", WEXITSTATUS(*status));
  const std::string killed = "was killed by " + signal_text(WTERMSIG(*status));
  if (out_of_memory) return killed + ": the kernel ran out of memory";
  if (WTERMSIG(*status) == SIGKILL) return killed + ": by a user, the scheduler, or the kernel if memory ran out";
  return killed;
}

}  // namespace tri
