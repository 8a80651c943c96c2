// When a process that should stop is ended by force. There is no job: MPI has not started.
#include "lib/fault/stop_deadline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

namespace tri {
namespace {

constexpr int kDrained = static_cast<int>(ExitCode::kDrained);

// Exits with the status of a process that waits after SIGTERM, or with 0 if nothing ends it within the limit of `set`.
[[noreturn]] void wait_after_signal(const std::function<void(StopDeadline&)>& set, std::chrono::seconds limit) {
  const StopSignals signals;
  StopDeadline deadline(signals);
  set(deadline);
  std::raise(SIGTERM);
  std::this_thread::sleep_for(limit);
  std::_Exit(0);
}

TEST(StopDeadlineDeathTest, before_the_first_step_a_process_leaves_within_the_grace) {
  constexpr std::chrono::seconds kAnyTime{300};
  EXPECT_EXIT(wait_after_signal([](StopDeadline& d) { d.set_grace(0.1); }, kAnyTime), testing::ExitedWithCode(kDrained),
              "stopped by signal 15 before the first step");
}

TEST(StopDeadlineDeathTest, in_steps_the_grace_counts) {
  constexpr std::chrono::seconds kAnyTime{300};
  const auto set = [](StopDeadline& d) {
    d.set_grace(0.1);
    d.begin_steps();
    d.set_progress(7, 5);
  };
  EXPECT_EXIT(wait_after_signal(set, kAnyTime), testing::ExitedWithCode(kDrained), "after 5, .* up to 7 ARE LOST");
}

TEST(StopDeadlineDeathTest, a_run_that_has_saved_is_not_cut_short) {
  const auto set = [](StopDeadline& d) {
    d.set_grace(0.1);
    d.cancel();
  };
  EXPECT_EXIT(wait_after_signal(set, std::chrono::seconds(1)), testing::ExitedWithCode(0), "");
  const auto no_limit = [](StopDeadline& d) {
    d.set_grace(0);
    d.begin_steps();
  };
  EXPECT_EXIT(wait_after_signal(no_limit, std::chrono::seconds(1)), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tri
