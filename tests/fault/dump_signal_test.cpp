// SIGQUIT is counted and does not end the process.
#include "lib/fault/dump_signal.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tri {
namespace {

TEST(DumpSignal, each_object_counts_signals_from_zero) {
  for (int object = 0; object < 2; ++object) {
    const DumpSignal signal;
    EXPECT_EQ(signal.received(), 0u);
    for (uint32_t count = 1; count <= 3; ++count) {
      std::raise(SIGQUIT);
      EXPECT_EQ(signal.received(), count);
    }
  }
}

TEST(DumpSignalDeathTest, afterwards_it_ends_the_process_as_before) {
  const auto quit = [] {
    { const DumpSignal signal; }
    std::raise(SIGQUIT);
    std::_Exit(0);
  };
  EXPECT_EXIT(quit(), testing::KilledBySignal(SIGQUIT), "");
}

}  // namespace
}  // namespace tri
