// Measures the cost of recording progress in a flight recorder, in nanoseconds: of the host's and the stream's threads
// together, and of the host alone. It is a measurement (lib/bench/measurements/flight_recorder_cost.md) without
// assertions, so it runs only on request:
//   build/bin/test_comm --gtest_also_run_disabled_tests --gtest_filter='*Cost*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>

#include "io/base/format.h"
#include "kernels/cpu/device.h"
#include "lib/comm/groups/channel_progress.h"
#include "lib/comm/groups/compute_progress.h"

namespace tri {
namespace {

struct Cost {
  double process = 0, host = 0;  // CPU time per item in nanoseconds
};

double nanoseconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

// Returns the minimum of several rounds.
Cost cost_of(Stream& stream, const std::function<void()>& item) {
  constexpr int kRounds = 9, kItems = 20'000;
  Cost least{.process = 1e9, .host = 1e9};
  for (int round = 0; round < kRounds; ++round) {
    stream.synchronize();
    const double process = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), host = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < kItems; ++i) item();
    least.host = std::min(least.host, (nanoseconds(CLOCK_THREAD_CPUTIME_ID) - host) / kItems);
    stream.synchronize();
    least.process = std::min(least.process, (nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - process) / kItems);
  }
  return least;
}

void print(const char* what, const Cost& with, const Cost& without) {
  fmt::print("{:<10} {:6.0f} ns, of these {:.0f} the host's\n", what, with.process - without.process,
             with.host - without.host);
}

TEST(ProgressCost, DISABLED_of_a_transfer_an_action_and_a_wait) {
  char folder[] = "/dev/shm/trireme-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  ::setenv("TRIREME_BLACK_BOXES", folder, 1);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("transfers");
  // A task as short as a copy of a few KiB, so that the stream's thread never sleeps: compares the cost of marks with
  // an empty task.
  const auto task = [&] {
    cpu_stream(*stream).submit([] {
      for (int i = 0; i < 300; ++i) asm volatile("");
    });
  };
  const auto transfer = [&](ChannelProgress& progress) {
    progress.enqueue(ChannelOperation::kAllGather, 4096);
    progress.joined(*stream);
    task();
    progress.completed(*stream);
  };
  const auto action = [&] {
    const ComputeProgress progress(ComputeKind::kForward, 0, 1);
    progress.entered(*stream);
    progress.running(*stream);
    task();
  };
  const auto wait = [] { const HostScope waits(HostState::kAwaitsDevice); };
  ChannelProgress unrecorded;
  const Cost bare_transfer = cost_of(*stream, [&] { transfer(unrecorded); });
  const Cost bare_action = cost_of(*stream, action), bare_wait = cost_of(*stream, wait);

  auto recorder = FlightRecorder::create({.world_size = 2, .attempt = "cost"});
  ASSERT_TRUE(recorder);
  {
    const ProcessFlightRecorder process(recorder.value().get());
    ChannelProgress progress("tp", ChannelKind::kCollectives, {0, 1}, 0);
    print("transfer", cost_of(*stream, [&] { transfer(progress); }), bare_transfer);
    print("action", cost_of(*stream, action), bare_action);
    print("wait", cost_of(*stream, wait), bare_wait);
    const flight::Channel& channel = recorder.value()->image().channels[0];
    EXPECT_EQ(channel.completed, progress.last());
    EXPECT_EQ(channel.joined, progress.last());
  }
  recorder.value()->end_well();
  recorder.value().reset();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tri
