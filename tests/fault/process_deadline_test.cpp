// Deadlines where no watchdog runs. A deadline of 0 has always passed; the real ones, 300 and 900 s, never do here.
#include "lib/fault/process_deadline.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

namespace tri {
namespace {

using std::chrono::milliseconds;

FaultConfig fault_of(double seconds, Switch watchdog = Switch::kOn) {
  FaultConfig fault;
  fault.setup_seconds = seconds;
  fault.watchdog = watchdog;
  return fault;
}

TEST(ProcessDeadline, ends_what_takes_too_long_and_says_what_that_is) {
  std::promise<std::string> ended;
  ProcessDeadline deadline(
      "the start of MPI", [&](const std::string& text) { ended.set_value(text); }, milliseconds(1));
  deadline.set(fault_of(0));
  EXPECT_EQ(ended.get_future().get(), "fault.setup_seconds: the start of MPI has not finished after 0 s");
}

TEST(ProcessDeadline, each_phase_restarts_the_count_and_has_its_own_end) {
  std::promise<std::string> ended;
  ProcessDeadline deadline(
      "the start of MPI", [](const std::string& text) { FAIL() << text; }, milliseconds(1));
  deadline.begin("the end of MPI", [&](const std::string& text) { ended.set_value(text); });
  deadline.set(fault_of(0));
  EXPECT_NE(ended.get_future().get().find("the end of MPI"), std::string::npos);
}

TEST(ProcessDeadline, is_silent_once_a_watchdog_looks_or_where_none_is_wanted) {
  // The third one, which ticks equally often, shows that the first two had enough time to fail.
  ProcessDeadline watched(
      "config and plan", [](const std::string& text) { FAIL() << text; }, milliseconds(1));
  watched.hand_over();
  watched.set(fault_of(0));
  ProcessDeadline off(
      "config and plan", [](const std::string& text) { FAIL() << text; }, milliseconds(1));
  off.set(fault_of(0, Switch::kOff));
  std::promise<void> ended;
  ProcessDeadline third(
      "config and plan", [&](const std::string&) { ended.set_value(); }, milliseconds(20));
  third.set(fault_of(0));
  ended.get_future().wait();
}

// Nothing of the config is known while MPI starts.
TEST(ProcessDeadline, before_the_config_the_environment_says_it) {
  std::promise<std::string> ended;
  ::setenv(kStartSecondsVariable, "0", 1);
  ProcessDeadline off(
      "the start of MPI", [](const std::string& text) { FAIL() << text; }, milliseconds(1));
  ::setenv(kStartSecondsVariable, "soon", 1);
  ProcessDeadline standard(
      "the start of MPI", [](const std::string& text) { FAIL() << text; }, milliseconds(1));
  ::setenv(kStartSecondsVariable, "0.01", 1);
  ProcessDeadline deadline(
      "the start of MPI", [&](const std::string& text) { ended.set_value(text); }, milliseconds(20));
  ::unsetenv(kStartSecondsVariable);
  EXPECT_EQ(ended.get_future().get(), "TRIREME_START_SECONDS: the start of MPI has not finished after 0 s");
}

TEST(ProcessDeadline, an_invalid_deadline_is_an_error_and_no_job_begins) {
  for (const char* text : {"5m", "-1", "", "nan", "inf", "soon"}) {
    ::setenv(kStartSecondsVariable, text, 1);
    const auto seconds = start_seconds();
    ASSERT_FALSE(seconds) << text;
    EXPECT_EQ(seconds.error().message,
              "TRIREME_START_SECONDS='" + std::string(text) + "': expected a number of seconds >= 0 (0 = no deadline)");
    EXPECT_EQ(run_watched_job(nullptr, nullptr, [](Job&, ProcessDeadline&) { return 0; }), 2);
  }
  ::setenv(kStartSecondsVariable, "12.5", 1);
  EXPECT_EQ(start_seconds().value(), 12.5);
  ::unsetenv(kStartSecondsVariable);
  EXPECT_EQ(start_seconds().value(), kStartSeconds);
}

TEST(ProcessDeadline, leaves_alone_with_its_status) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(leave_alone(ExitCode::kWatchdog)("fault.setup_seconds: the start of MPI has not finished after 900 s"),
              testing::ExitedWithCode(6), "process [0-9]+ on .*: error: fault.setup_seconds: the start of MPI");
}

}  // namespace
}  // namespace tri
