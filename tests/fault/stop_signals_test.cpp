// Which signals request a stop of a run, and which end it. Each test has its own process, because signals stay noted.
#include "lib/fault/stop_signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace tri {
namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};

// Ends the process with status 0 if `holds` and all signals so far were only noted.
[[noreturn]] void end_with(bool holds) { std::_Exit(holds ? 0 : 1); }

TEST(StopSignalsDeathTest, the_first_signal_and_its_time_are_noted) {
  const auto raised = [](int signal) {
    const StopSignals signals;
    bool holds = signals.received() == 0 && !signals.first();
    const auto before = StopSignals::Clock::now();
    std::raise(signal);
    const auto after = StopSignals::Clock::now();
    holds = holds && signals.received() == signal && signals.first();
    end_with(holds && *signals.first() >= before && *signals.first() <= after);
  };
  for (const int signal : kStopSignals) EXPECT_EXIT(raised(signal), testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, more_signals_change_nothing) {
  const auto raised = [](int signal) {
    const StopSignals signals;
    std::raise(signal);
    const auto first = signals.first();
    for (const int more : kStopSignals) std::raise(more);
    std::raise(signal);
    end_with(signals.received() == signal && signals.first() == first);
  };
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) EXPECT_EXIT(raised(signal), testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, a_second_interrupt_ends_the_process_at_once) {
  const auto raise_in_turn = [](std::initializer_list<int> list) {
    const StopSignals signals;
    for (const int signal : list) std::raise(signal);
    end_with(true);
  };
  EXPECT_EXIT(raise_in_turn({SIGINT}), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(raise_in_turn({SIGTERM, SIGINT, SIGTERM}), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(raise_in_turn({SIGINT, SIGINT}), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(raise_in_turn({SIGTERM, SIGINT, SIGUSR1, SIGINT}), testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignalsDeathTest, what_was_noted_before_another_object_stays_noted) {
  const auto twice = [] {
    { const StopSignals signals; }
    std::raise(SIGUSR1);
    std::signal(SIGTERM, SIG_DFL);  // as a library may do
    const StopSignals signals;
    std::raise(SIGTERM);
    end_with(signals.received() == SIGUSR1);
  };
  EXPECT_EXIT(twice(), testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, a_process_that_is_ending_keeps_its_status) {
  const auto after_the_end = [](int signal) {
    { const StopSignals signals; }
    std::raise(signal);
    end_with(true);
  };
  for (const int signal : kStopSignals) EXPECT_EXIT(after_the_end(signal), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tri
