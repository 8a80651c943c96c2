// Processes as the kernel shows them in /proc. A process may end at any moment: what cannot be read is absent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

struct ProcessStat {
  char state = '\0';  // 'R', 'S', 'D', 'T', 't', 'Z', 'X', ...
  pid_t parent = 0;
  double cpu_seconds = 0;  // user and system
  int64_t start = 0;       // clock ticks since the boot; distinguishes a process from a later one with the same number
};
// Returns the state of the process or thread with this folder: "/proc/self", "/proc/12", "/proc/12/task/13". nullopt:
// it has ended, or the file is not in the kernel's format.
std::optional<ProcessStat> process_stat(const std::string& folder);

// Returns the ids of all processes under `proc`, in no order.
std::vector<pid_t> process_ids(const std::string& proc = "/proc");
std::string process_folder(pid_t process, const std::string& proc = "/proc");

// Returns the value of variable `name` in `environment`, the contents of a file /proc/PID/environ.
std::optional<std::string_view> variable_in(std::string_view environment, std::string_view name);

// Returns an identifier of this process's PID namespace; 0: unknown.
int64_t pid_namespace();

// Returns MemAvailable of `meminfo`, the contents of /proc/meminfo, in bytes.
std::optional<int64_t> available_bytes(std::string_view meminfo);

}  // namespace tri
