// Ranks that cannot execute code are killed, and the process that kills them exits.
#include "lib/comm/job/node_reaper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace tri {
namespace {

// A child that sleeps until it is killed; stopped, if requested.
pid_t make_child(bool stopped) {
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  if (stopped) {
    ::kill(child, SIGSTOP);
    ::waitpid(child, nullptr, WUNTRACED);
  }
  return child;
}

ProcessId id_of(pid_t child) { return {child, this_process().pid_namespace}; }

int status_of(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

TEST(NodeReaper, kills_what_is_stopped_and_leaves) {
  const pid_t stopped = make_child(true), asleep = make_child(false);
  const NodeReaper reaper({id_of(stopped), id_of(asleep)});
  const pid_t process = reaper.start(0);
  ASSERT_GT(process, 0);
  for (const pid_t child : {stopped, asleep}) {
    const int status = status_of(child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
  }
  EXPECT_EQ(status_of(process), 0);  // it exited by itself
}

TEST(NodeReaper, leaves_when_all_end_by_themselves) {
  const pid_t child = make_child(false);
  const NodeReaper reaper({id_of(child)});
  const pid_t process = reaper.start(600);
  ::kill(child, SIGTERM);
  const int status = status_of(child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_EQ(status_of(process), 0);
}

TEST(NodeReaper, spares_a_later_process_of_the_same_number_and_other_namespaces) {
  const pid_t gone = make_child(false), elsewhere = make_child(false);
  ProcessId other = id_of(elsewhere);
  other.pid_namespace += 1;
  const NodeReaper reaper({id_of(gone), other});
  ::kill(gone, SIGKILL);
  status_of(gone);
  EXPECT_EQ(status_of(reaper.start(600)), 0);  // there is no process to wait for
  EXPECT_EQ(::kill(elsewhere, 0), 0);
  ::kill(elsewhere, SIGKILL);
  const int status = status_of(elsewhere);
  EXPECT_TRUE(WIFSIGNALED(status));
}

// Otherwise the signal that a launcher sends to the process group of the starting rank would end it.
TEST(NodeReaper, has_left_the_group_when_it_is_begun) {
  const pid_t child = make_child(true);
  const NodeReaper reaper({id_of(child)});
  for (int i = 0; i < 20; ++i) {
    const pid_t process = reaper.start(600);
    ASSERT_GT(process, 0);  // -1 would mean all processes
    EXPECT_EQ(::getpgid(process), process);
    ::kill(process, SIGKILL);
    status_of(process);
  }
  ::kill(child, SIGKILL);
  status_of(child);
}

TEST(NodeReaper, holds_no_file_of_the_job) {
  const pid_t child = make_child(true);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const NodeReaper reaper({id_of(child)});
  const pid_t process = reaper.start(600);
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // the other end is closed in all processes: nothing waits for its output
  ::close(ends[0]);
  ::kill(child, SIGKILL);
  status_of(child);
  EXPECT_EQ(status_of(process), 0);
}

}  // namespace
}  // namespace tri
