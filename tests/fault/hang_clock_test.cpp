// When a rank is considered to hang: clocks over recorded sightings, without sleeping.
#include "lib/fault/hang_clock.h"

#include <gtest/gtest.h>

#include <optional>

namespace tri {
namespace {

using Alarm = HangClock::Alarm;

constexpr double kTick = 0.2;

PhaseDeadlines deadlines(double step) {
  FaultConfig fault;
  fault.setup_seconds = 90;
  fault.load_seconds = 80;
  fault.step_seconds = step;
  fault.checkpoint_seconds = 30;
  fault.evaluation_seconds = 50;
  return phase_deadlines(fault, true);
}

// A rank whose flight recorder is read every 200 ms.
class Rank {
 public:
  explicit Rank(const PhaseDeadlines& deadlines) : clock_(deadlines) { record.now = 1'000'000'000; }

  // No progress for `seconds`; returns the times of the first dump and the first end, in seconds from the start.
  struct Alarms {
    std::optional<double> dump, end;
    int num_dumps = 0;
    HangClock::Verdict last;
  };
  Alarms idle(double seconds, double tick = kTick) {
    Alarms alarms;
    for (double at = tick; at <= seconds + 1e-9; at += tick) {
      record.now += static_cast<int64_t>(tick * 1e9);
      see(alarms, at);
    }
    return alarms;
  }
  // The same, but with progress at every tick.
  Alarms busy(double seconds, uint32_t Sighting::*counter = &Sighting::progress) {
    Alarms alarms;
    for (double at = kTick; at <= seconds + 1e-9; at += kTick) {
      record.now += static_cast<int64_t>(kTick * 1e9);
      ++(record.*counter);
      see(alarms, at);
    }
    return alarms;
  }
  // A step of `seconds`, in which the flight recorder is read once.
  void step(double seconds) {
    record.now += static_cast<int64_t>(seconds * 1e9);
    record.step_nanoseconds = static_cast<int64_t>(seconds * 1e9);
    ++record.step;
    ++record.progress;
    clock_.see(record);
  }
  double deadline(RunPhase phase) const { return clock_.deadline(phase); }

  Sighting record;

 private:
  void see(Alarms& alarms, double at) {
    const HangClock::Verdict verdict = clock_.see(record);
    if (verdict.alarm == Alarm::kDump) ++alarms.num_dumps;
    if (verdict.alarm == Alarm::kDump && !alarms.dump) alarms.dump = at;
    if (verdict.alarm == Alarm::kEnd && !alarms.end) alarms.end = at;
    if (verdict.alarm != Alarm::kNone) alarms.last = verdict;
  }

  HangClock clock_;
};

TEST(HangClock, dumps_once_at_half_of_the_deadline_and_ends_at_all_of_it) {
  for (const RunPhase phase : {RunPhase::kSetup, RunPhase::kLoad, RunPhase::kStep, RunPhase::kCheckpoint,
                               RunPhase::kEvaluation, RunPhase::kSample, RunPhase::kFinish}) {
    const PhaseDeadlines limits = deadlines(20);
    Rank rank(limits);
    rank.record.phase = phase;
    const auto alarms = rank.idle(100);
    ASSERT_TRUE(alarms.dump && alarms.end) << enum_name(phase);
    EXPECT_NEAR(*alarms.dump, limits[phase] / 2, 2 * kTick) << enum_name(phase);
    EXPECT_NEAR(*alarms.end, limits[phase], 2 * kTick) << enum_name(phase);
    EXPECT_EQ(alarms.num_dumps, 1);
    EXPECT_EQ(alarms.last.trigger.phase, phase);
    EXPECT_FALSE(alarms.last.trigger.writer);
    EXPECT_EQ(alarms.last.deadline, limits[phase]);
  }
}

TEST(HangClock, progress_restarts_the_clock_and_a_later_hang_dumps_again) {
  Rank rank(deadlines(20));
  rank.record.phase = RunPhase::kStep;
  EXPECT_FALSE(rank.busy(200).dump);
  for (int hang = 0; hang < 3; ++hang) {
    ++rank.record.progress;
    const auto alarms = rank.idle(15);
    EXPECT_EQ(alarms.num_dumps, 1) << hang;
    EXPECT_FALSE(alarms.end) << hang;
  }
  ++rank.record.progress;
  EXPECT_FALSE(rank.idle(9).dump);
}

TEST(HangClock, another_phase_restarts_the_clock_with_its_own_deadline) {
  Rank rank(deadlines(20));
  rank.record.phase = RunPhase::kStep;
  EXPECT_FALSE(rank.idle(9).dump);
  rank.record.phase = RunPhase::kEvaluation;  // 50 s
  EXPECT_FALSE(rank.idle(24).dump);
  rank.record.phase = RunPhase::kStep;
  EXPECT_FALSE(rank.idle(9).dump);
  EXPECT_TRUE(rank.idle(3).dump);
}

TEST(HangClock, a_suspension_of_the_whole_job_is_no_hang) {
  Rank rank(deadlines(20));
  rank.record.phase = RunPhase::kStep;
  for (int i = 0; i < 9; ++i) {
    rank.record.now += int64_t{3600} * 1'000'000'000;  // an hour in one tick
    EXPECT_FALSE(rank.idle(kTick / 2, kTick / 2).dump) << i;
    rank.busy(1);
  }
  EXPECT_NEAR(*rank.idle(60).end, 20, 2 * kTick);
  // Without progress between them, suspensions count for one second each.
  Rank still(deadlines(20));
  still.record.phase = RunPhase::kStep;
  still.idle(kTick);
  EXPECT_FALSE(still.idle(9 * 100, 100).dump);
  EXPECT_TRUE(still.idle(2 * 100, 100).dump);
}

TEST(HangClock, the_first_steps_have_the_deadline_of_the_setup) {
  Rank rank(deadlines(0));
  rank.record.phase = RunPhase::kStep;
  rank.idle(kTick);
  for (int i = 0; i < HangClock::kWarmUpSteps; ++i) {
    EXPECT_EQ(rank.deadline(RunPhase::kStep), 90) << i;
    rank.step(1000);  // steps that compile and connect are ignored
  }
  EXPECT_EQ(rank.deadline(RunPhase::kStep), 90);
  rank.step(1);
  EXPECT_EQ(rank.deadline(RunPhase::kStep), 60);  // the floor of one node
  EXPECT_EQ(rank.deadline(RunPhase::kLoad), 80);
}

TEST(HangClock, learns_five_times_the_99th_percentile_of_a_step) {
  Rank rank(deadlines(0));
  rank.record.phase = RunPhase::kStep;
  rank.idle(kTick);
  for (int i = 0; i < HangClock::kWarmUpSteps; ++i) rank.step(1000);
  for (int i = 0; i < 990; ++i) rank.step(20);
  EXPECT_DOUBLE_EQ(rank.deadline(RunPhase::kStep), 100);
  for (int i = 0; i < 5; ++i) rank.step(70);  // 0.5 % of the steps
  EXPECT_DOUBLE_EQ(rank.deadline(RunPhase::kStep), 100);
  for (int i = 0; i < 20; ++i) rank.step(70);  // 2.5 %
  EXPECT_DOUBLE_EQ(rank.deadline(RunPhase::kStep), 350);
  for (int i = 0; i < 1000; ++i) rank.step(30);  // the slow steps are forgotten
  EXPECT_DOUBLE_EQ(rank.deadline(RunPhase::kStep), 150);
}

TEST(HangClock, a_run_that_goes_on_at_a_late_step_warms_up_all_the_same) {
  Rank rank(deadlines(0));
  rank.record.phase = RunPhase::kLoad;
  rank.idle(kTick);
  rank.record.phase = RunPhase::kStep;
  rank.record.step = 5000;
  rank.idle(kTick);
  for (int i = 0; i < HangClock::kWarmUpSteps; ++i) {
    EXPECT_EQ(rank.deadline(RunPhase::kStep), 90) << i;
    rank.step(1000);
  }
  EXPECT_EQ(rank.deadline(RunPhase::kStep), 90);
  rank.step(40);
  EXPECT_DOUBLE_EQ(rank.deadline(RunPhase::kStep), 200);
}

TEST(HangClock, what_is_configured_holds_from_the_first_step_on) {
  Rank rank(deadlines(7));
  rank.record.phase = RunPhase::kStep;
  rank.idle(kTick);
  for (int i = 0; i < 20; ++i) rank.step(40);
  EXPECT_EQ(rank.deadline(RunPhase::kStep), 7);
  PhaseDeadlines ramp = deadlines(0);
  ramp.step_growth = 8;
  Rank grows(ramp);
  grows.record.phase = RunPhase::kStep;
  grows.idle(kTick);
  for (int i = 0; i < 20; ++i) grows.step(40);
  EXPECT_NEAR(grows.deadline(RunPhase::kStep), 8 * 5 * 40, 8 * 5 * kTick) << "later steps may be 8 times as long";
  FaultConfig fault;
  EXPECT_EQ(phase_deadlines(fault, true).step_floor, 60);
  EXPECT_EQ(phase_deadlines(fault, false).step_floor, 180);
}

TEST(HangClock, the_writer_of_a_checkpoint_has_its_own_clock) {
  Rank rank(deadlines(20));
  rank.record.phase = RunPhase::kStep;
  EXPECT_FALSE(rank.busy(100).dump);  // idle: no clock runs
  rank.record.writer = WriterState::kWrites;
  auto alarms = rank.busy(40);  // steps continue, the writer does not
  ASSERT_TRUE(alarms.dump && alarms.end);
  EXPECT_NEAR(*alarms.dump, 15, 2 * kTick);
  EXPECT_NEAR(*alarms.end, 30, 2 * kTick);
  EXPECT_TRUE(alarms.last.trigger.writer);
  EXPECT_EQ(alarms.last.trigger.phase, RunPhase::kStep);
  EXPECT_EQ(alarms.last.deadline, 30);

  rank.record.writer = WriterState::kPublishes;  // a change of state is progress
  EXPECT_FALSE(rank.busy(14).dump);
  ++rank.record.writer_progress;
  EXPECT_FALSE(rank.busy(14).dump);
  rank.record.writer = WriterState::kIdle;
  EXPECT_FALSE(rank.busy(100).dump);
}

TEST(HangClock, lines_that_storage_does_not_take_have_a_checkpoints_time_and_not_a_steps) {
  Rank rank(deadlines(5));
  rank.record.phase = RunPhase::kStep;
  rank.record.lines_pending = true;
  EXPECT_FALSE(rank.busy(14).dump);  // steps continue
  ++rank.record.lines_written;
  EXPECT_FALSE(rank.busy(14).dump);
  rank.record.lines_pending = false;
  EXPECT_FALSE(rank.busy(100).dump);
  rank.record.lines_pending = true;
  const auto alarms = rank.busy(40);
  ASSERT_TRUE(alarms.dump && alarms.end);
  EXPECT_NEAR(*alarms.dump, 15, 2 * kTick);
  EXPECT_NEAR(*alarms.end, 30, 2 * kTick);
  EXPECT_TRUE(alarms.last.trigger.writer);
  EXPECT_EQ(alarms.last.deadline, 30);
}

TEST(HangClock, a_writer_that_goes_on_does_not_hide_steps_that_do_not) {
  Rank rank(deadlines(20));
  rank.record.phase = RunPhase::kStep;
  rank.record.writer = WriterState::kWrites;
  const auto alarms = rank.busy(25, &Sighting::writer_progress);
  ASSERT_TRUE(alarms.end);
  EXPECT_NEAR(*alarms.end, 20, 2 * kTick);
  EXPECT_FALSE(alarms.last.trigger.writer);
}

}  // namespace
}  // namespace tri
