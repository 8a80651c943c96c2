// Which signals ask a run to stop, and which ends it.
#include "lib/fault/stop_signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace tri {
namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};

// Ends the process with status 0 if all that came so far was only noted.
[[noreturn]] void survive() { std::_Exit(0); }

TEST(StopSignals, the_first_signal_and_its_time_are_noted) {
  for (const int signal : kStopSignals) {
    const StopSignals signals;
    EXPECT_EQ(signals.received(), 0);
    EXPECT_FALSE(signals.first());
    const auto before = StopSignals::Clock::now();
    std::raise(signal);
    const auto after = StopSignals::Clock::now();
    EXPECT_EQ(signals.received(), signal);
    ASSERT_TRUE(signals.first());
    EXPECT_GE(*signals.first(), before);
    EXPECT_LE(*signals.first(), after);
  }
}

TEST(StopSignals, more_signals_change_nothing) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) {
    const StopSignals signals;
    std::raise(signal);
    const auto first = signals.first();
    for (const int more : kStopSignals) std::raise(more);
    std::raise(signal);
    EXPECT_EQ(signals.received(), signal);
    EXPECT_EQ(signals.first(), first);
  }
}

TEST(StopSignalsDeathTest, a_second_interrupt_ends_the_process_at_once) {
  const auto raise_in_turn = [](std::initializer_list<int> list) {
    const StopSignals signals;
    for (const int signal : list) std::raise(signal);
    survive();
  };
  EXPECT_EXIT(raise_in_turn({SIGINT}), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(raise_in_turn({SIGTERM, SIGINT, SIGTERM}), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(raise_in_turn({SIGINT, SIGINT}), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(raise_in_turn({SIGTERM, SIGINT, SIGUSR1, SIGINT}), testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignalsDeathTest, a_new_object_counts_anew) {
  const auto one_each = [] {
    for (int i = 0; i < 2; ++i) {
      const StopSignals signals;
      std::raise(SIGINT);
    }
    survive();
  };
  EXPECT_EXIT(one_each(), testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, a_process_that_is_ending_keeps_its_status) {
  const auto after_the_end = [](int signal) {
    { const StopSignals signals; }
    std::raise(signal);
    survive();
  };
  for (const int signal : kStopSignals) EXPECT_EXIT(after_the_end(signal), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tri
