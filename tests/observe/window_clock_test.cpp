// A rank's statistics of a window, computed from the timeline of its steps.
#include "lib/observe/ranks/window_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "tests/hangs/stream_task.h"

namespace tri {
namespace {

using std::chrono::microseconds;

// A step with the marks of the executor and the gradient buckets, with this `detail`.
Timeline::Times step_of(TimelineDetail detail) {
  auto device = value_or_throw(open_device(DeviceKind::kCpu, 0));
  auto stream = device->make_stream("compute");
  Timeline timeline(*device, *stream, detail);
  timeline.note_ready();  // has no effect outside a step
  timeline.begin();
  timeline.enter_action(TimeCategory::kForward);
  idle(*stream, microseconds(2000));
  {
    const TimeCategoryScope waits(*stream, TimeCategory::kTp);
    idle(*stream, microseconds(2000));
  }
  idle(*stream, microseconds(2000));
  timeline.enter_action(TimeCategory::kBackward);
  idle(*stream, microseconds(2000));
  timeline.note_ready();
  idle(*stream, microseconds(2000));
  timeline.note_ready();
  timeline.enter(TimeCategory::kOptimizer);
  idle(*stream, microseconds(2000));
  timeline.end();
  stream->synchronize();
  return timeline.take();
}

TEST(TimelineDetails, forwards_backwards_and_readiness_are_told_apart) {
  const Timeline::Times times = step_of(TimelineDetail::kOn);
  EXPECT_GE(times.of(TimeCategory::kForward), 0.004);
  EXPECT_GE(times.of(TimeCategory::kBackward), 0.004);
  EXPECT_GE(times.of(TimeCategory::kTp), 0.002);
  // The two notes are 2 ms apart; the first comes after 8 ms.
  EXPECT_GE(times.ready, 0.009);
  EXPECT_LE(times.ready, times.total() - times.of(TimeCategory::kOptimizer));
  // A sleeping thread does not work.
  EXPECT_LT(times.work[static_cast<size_t>(TimeCategory::kForward)], times.of(TimeCategory::kForward));
}

TEST(TimelineDetails, without_them_all_of_it_is_compute) {
  const Timeline::Times times = step_of(TimelineDetail::kOff);
  EXPECT_EQ(times.of(TimeCategory::kForward), 0);
  EXPECT_EQ(times.of(TimeCategory::kBackward), 0);
  EXPECT_EQ(times.ready, 0);
  EXPECT_GE(times.of(TimeCategory::kCompute), 0.008);
}

TEST(WindowClock, parts_add_up_to_the_step_and_a_slow_step_does_not_move_compute) {
  WindowClock clock;
  for (int step = 0; step < 9; ++step) {
    Timeline::Times timeline;
    const double slow = step == 4 ? 10 : 1;
    const auto set = [&](TimeCategory category, double seconds, double work) {
      timeline.seconds[static_cast<size_t>(category)] = seconds;
      timeline.work[static_cast<size_t>(category)] = work;
    };
    set(TimeCategory::kCompute, 0.02, 0.01);
    set(TimeCategory::kForward, 0.1 * slow, 0.08 * slow);
    set(TimeCategory::kBackward, 0.2 * slow, 0.17 * slow);
    set(TimeCategory::kOptimizer, 0.05, 0.04);
    set(TimeCategory::kTp, 0.03, 0);
    set(TimeCategory::kCp, 0.01, 0);
    set(TimeCategory::kEp, 0.015, 0);
    set(TimeCategory::kDp, 0.02, 0);
    set(TimeCategory::kPp, 0.06, 0);
    timeline.pp_waits = {0.01, 0.05};
    timeline.ready = step % 2 == 0 ? 0.2 : 0.3;
    const double wall = timeline.total() + 0.07;
    const StepTimes times = step_times(timeline, 0.02, wall, 0.04);
    clock.add({.times = times, .timeline = timeline, .wall = wall, .send = 0.001 * step, .before = 0.5});
  }
  EXPECT_EQ(clock.steps(), 9);
  const RankTimes mean = clock.take();
  EXPECT_EQ(clock.steps(), 0);
  double parts = 0;
  for (const RankQuantity part :
       {RankQuantity::kForward, RankQuantity::kBackward, RankQuantity::kOptimizer, RankQuantity::kTp, RankQuantity::kCp,
        RankQuantity::kEp, RankQuantity::kPp, RankQuantity::kDp, RankQuantity::kBubble, RankQuantity::kData,
        RankQuantity::kStolen, RankQuantity::kOther})
    parts += mean[part];
  EXPECT_NEAR(parts, mean[RankQuantity::kStep], 1e-5);
  EXPECT_NEAR(mean[RankQuantity::kForward], 0.16, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kStolen], 0.01 + 0.05 * 2 + 0.01, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kOther], 0.03 + 0.01, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kPp], 0.03, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kCompute], 0.25, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kSend], 0.004, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kLaunch], 0.5 + (5 * 0.2 + 4 * 0.3) / 9, 1e-6);
  EXPECT_NEAR(mean[RankQuantity::kLaunchSpread], 0.1 * std::sqrt(20.0) / 9, 1e-6);
}

}  // namespace
}  // namespace tri
