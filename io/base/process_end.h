// How a process that is not a child of this one has ended: its exit status or its signal, and whether the kernel killed
// it because memory ran out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tri {

// "signal 9 (SIGKILL)"; "signal 64" if the number has no name.
std::string signal_text(int signal);

// Returns the status of an ended process in the format of waitpid(2). `pidfd`: opened with pidfd_open(2) before
// it ended. Before Linux 6.15 the status is known only until the parent has read it. nullopt: unknown.
std::optional<int> wait_status_of(int pidfd, pid_t process);

// Returns how many processes of this process's cgroup the kernel has killed because memory ran out; nullopt: unknown.
std::optional<int64_t> out_of_memory_kills();

// Whether `log`, text of the kernel's log, says that the kernel killed `process` because memory ran out.
bool names_out_of_memory_kill(std::string_view log, pid_t process);
// The kernel's log; "" if this user must not read it.
std::string kernel_log();

// "was killed by signal 9 (SIGKILL): ..." or "exited with status 3", for messages; the subject precedes it. `status`:
// of wait_status_of().
std::string ending_text(std::optional<int> status, bool out_of_memory);

}  // namespace tri
