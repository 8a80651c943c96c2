#include "io/base/process_end.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "io/base/file.h"

namespace tri {
namespace {

// The status of a child that ends as `end` does, as the watch of another process reads it: before its parent waits.
std::optional<int> status_of_child(void (*end)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    end();
    ::_exit(99);
  }
  const Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ended{pidfd.get(), POLLIN, 0};
  ::poll(&ended, 1, 60'000);
  const auto status = wait_status_of(pidfd.get(), child);
  int waited = 0;
  ::waitpid(child, &waited, 0);
  EXPECT_EQ(status, std::optional(waited));
  return status;
}

TEST(ProcessEnd, names_the_signal_or_the_exit_status) {
  EXPECT_EQ(ending_text(status_of_child([] { ::raise(SIGKILL); }), false),
            "was killed by signal 9 (SIGKILL): by a user, the scheduler, or the kernel if memory ran out");
  EXPECT_EQ(ending_text(status_of_child([] { ::raise(SIGTERM); }), false), "was killed by signal 15 (SIGTERM)");
  EXPECT_EQ(ending_text(status_of_child([] { ::_exit(3); }), false), "exited with status 3 without reporting an error");
}

TEST(ProcessEnd, an_unknown_status_and_an_unknown_signal_are_no_guess) {
  EXPECT_EQ(ending_text(std::nullopt, false), "has ended without reporting an error");
  EXPECT_EQ(signal_text(64), "signal 64");
}

TEST(ProcessEnd, the_kernel_s_log_names_the_process_that_it_killed) {
  constexpr std::string_view kLog =
      "3,1201,99,-;Memory cgroup out of memory: Killed process 6978 (trireme) total-vm:812kB, anon-rss:440kB\n"
      "6,1202,99,-;oom_reaper: reaped process 6978 (trireme)\n";
  EXPECT_TRUE(names_out_of_memory_kill(kLog, 6978));
  EXPECT_FALSE(names_out_of_memory_kill(kLog, 697));
  EXPECT_FALSE(names_out_of_memory_kill("", 6978));
  EXPECT_EQ(ending_text(SIGKILL, true), "was killed by signal 9 (SIGKILL): the kernel ran out of memory");
}

}  // namespace
}  // namespace tri
