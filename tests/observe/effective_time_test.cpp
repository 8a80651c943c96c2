#include "lib/observe/status/effective_time.h"

#include "tests/observe/story.h"

namespace tri::test {
namespace {

TEST(EffectiveTime, a_run_that_completes_has_no_loss) {
  Story story;
  story.begin(0).start(0).steps(10).span("checkpoint", 2).steps(5).span("evaluation", 3).wait(1).end();
  const EffectiveTime time = story.time();
  expect_partition(time);
  expect_seconds(time, {{WallTime::kStartup, 2},
                        {WallTime::kLoad, 3},
                        {WallTime::kProductive, 15},
                        {WallTime::kCheckpoint, 2},
                        {WallTime::kEvaluation, 3},
                        {WallTime::kOther, 1}});
  EXPECT_EQ(time.kept_steps, 15);
  EXPECT_EQ(time.lost_steps, 0);
  EXPECT_NEAR(time.effective(), 15.0 / 26, 1e-9);
}

TEST(EffectiveTime, steps_beyond_the_checkpoint_are_lost_by_a_crash) {
  Story story;
  story.begin(0).start(0).steps(10).published().steps(4).wait(0.5).failure().wait(2).consequence();
  Story resumed = story;
  resumed.begin(30).start(10).steps(6).end();
  const Seconds first = {{WallTime::kStartup, 2},
                         {WallTime::kLoad, 3},
                         {WallTime::kProductive, 10},
                         {WallTime::kRepeated, 4.5},  // and the step in progress
                         {WallTime::kDetection, 2}};
  expect_seconds(story.time(), first);
  Seconds both = first;
  both[WallTime::kStartup] += 2;
  both[WallTime::kLoad] += 3;
  both[WallTime::kProductive] += 6;
  both[WallTime::kRestart] = 30 - 21.5;
  expect_seconds(resumed.time(), both);
  EXPECT_EQ(resumed.time().lost_steps, 4);
  EXPECT_EQ(resumed.time().kept_steps, 16);
  ASSERT_EQ(resumed.time().attempts.size(), 2u);
  EXPECT_TRUE(resumed.time().attempts[0].failed);
  EXPECT_EQ(resumed.time().attempts[0].code, 4);
}

TEST(EffectiveTime, a_step_is_lost_by_any_later_attempt_that_begins_before_it) {
  Story story;
  story.begin(0).start(0).steps(20).published().failure();
  story.begin(30).start(20).steps(5).failure();
  story.begin(50).start(10).steps(30).end();  // the checkpoint of step 20 was damaged
  const EffectiveTime time = story.time();
  expect_partition(time);
  EXPECT_NEAR(time.of(WallTime::kProductive), 10 + 30, 1e-5);
  EXPECT_NEAR(time.of(WallTime::kRepeated), 10 + 5, 1e-5);
  EXPECT_EQ(time.attempts[1].kept_steps, 0);
}

TEST(EffectiveTime, a_hang_is_detected_from_its_beginning_to_the_attempts_end) {
  Story story;
  story.begin(0).start(0).steps(10).wait(60).hang(15.5).wait(60).failure(6);
  const EffectiveTime time = story.time();
  expect_partition(time);
  EXPECT_NEAR(time.of(WallTime::kDetection), 119.5, 1e-5);
  EXPECT_NEAR(time.of(WallTime::kRepeated), 10.5, 1e-5);  // no checkpoint holds them
}

TEST(EffectiveTime, a_hang_that_the_run_outlived_is_a_long_step) {
  for (const bool ends : {false, true}) {
    Story story;
    story.begin(0).start(0).steps(10).wait(60).hang(15).wait(5).steps(0);
    story.wait(-65).steps(1, 70).steps(3);
    if (ends) story.end();
    expect_seconds(story.time(), {{WallTime::kStartup, 2}, {WallTime::kLoad, 3}, {WallTime::kProductive, 83}});
  }
}

TEST(EffectiveTime, jobs_wait_in_the_queue_and_runs_stand_between_jobs) {
  Story story;
  story.begin(110, {.name = "1", .submitted = 10, .allocated = 100})
      .start(0)
      .steps(10)
      .span("checkpoint", 1)
      .published();
  story.end(75);  // at 126: drained at its time limit and requeued at 130
  story.begin(310, {.name = "1", .submitted = 130, .allocated = 300})
      .start(10)
      .steps(10)
      .published()
      .end(75);  // at 325
  story.begin(1010, {.name = "2", .submitted = 500, .allocated = 1000}).start(20).steps(10).end();
  const EffectiveTime time = story.time();
  expect_partition(time);
  EXPECT_NEAR(time.begin, Story::kEpoch + 10, 1e-6);
  expect_seconds(time, {{WallTime::kQueue, 90 + 170 + 500},
                        {WallTime::kRestart, 4},
                        {WallTime::kStopped, 500 - 325},
                        {WallTime::kStartup, 3 * (10 + 2)},  // including the launch
                        {WallTime::kLoad, 9},
                        {WallTime::kProductive, 30},
                        {WallTime::kCheckpoint, 1}});
  EXPECT_EQ(time.startup_phases.front().first, "launch");
}

TEST(EffectiveTime, a_restart_in_the_same_allocation_is_no_launch_of_a_job) {
  Story story;
  const Story::Job job{.name = "1", .submitted = 10, .allocated = 20};
  story.begin(20, job).start(0).steps(10).published().failure();
  story.wait(7).span("diagnosis", 5);  // of another process, which searches for the node to exclude
  story.begin(50, job).start(10).steps(10).end();
  const EffectiveTime time = story.time();
  expect_partition(time);
  EXPECT_NEAR(time.of(WallTime::kQueue), 10, 1e-5);
  EXPECT_NEAR(time.of(WallTime::kDiagnosis), 5, 1e-5);
  EXPECT_NEAR(time.of(WallTime::kRestart), 50 - 35 - 5, 1e-5);
}

TEST(EffectiveTime, without_a_scheduler_a_run_stands_after_good_ends_and_restarts_after_bad_ones) {
  Story good, bad, silent;
  good.begin(0).start(0).steps(5).published().end(75).begin(20).start(5).steps(5).end();
  bad.begin(0).start(0).steps(5).published().failure().begin(20).start(5).steps(5).end();
  silent.begin(0).start(0).steps(5).begin(20).start(0).steps(5).end();
  EXPECT_NEAR(good.time().of(WallTime::kStopped), 10, 1e-5);
  EXPECT_NEAR(bad.time().of(WallTime::kRestart), 10, 1e-5);
  EXPECT_NEAR(silent.time().of(WallTime::kRestart), 10, 1e-5);
  EXPECT_NEAR(silent.time().of(WallTime::kRepeated), 5, 1e-5);
}

TEST(EffectiveTime, what_a_run_has_done_so_far_counts) {
  Story story;
  story.begin(0).start(0).steps(5);
  EXPECT_NEAR(story.time().of(WallTime::kProductive), 5, 1e-5);
  Story setup;
  setup.begin(0).wait(3).hang(1).wait(3).failure(6);  // never reached a step
  expect_seconds(setup.time(), {{WallTime::kStartup, 1}, {WallTime::kDetection, 5}});
}

TEST(EffectiveTime, a_clock_that_goes_back_changes_no_duration) {
  Story story, late;
  story.begin(0).start(0).steps(10).published().failure().begin(-3600).start(10).steps(10).end();
  late.begin(0).start(0).steps(10).published().failure().begin(15).start(10).steps(10).end();
  expect_partition(story.time());
  EXPECT_EQ(story.time().seconds, late.time().seconds);
  // Inside an attempt, where it can only hide time.
  Story inside;
  inside.begin(0).start(0).steps(10).wait(-7).steps(10).end();
  expect_partition(inside.time());
  EXPECT_LE(inside.time().of(WallTime::kProductive), 20);
}

TEST(EffectiveTime, a_clock_that_is_set_between_attempts_changes_no_duration) {
  Story never_set;
  never_set.begin(0).on("a", 100).start(0).steps(10).published().failure();
  never_set.begin(40).on("a", 140).start(10).steps(10).failure().begin(70).on("a", 170).start(10).steps(20).end();
  for (const double set : {600.0, -600.0, 3600.0, -3600.0}) {
    Story story;
    story.begin(0).on("a", 100).start(0).steps(10).published().failure();
    story.begin(40 + set).on("a", 140).start(10).steps(10).failure().begin(70).on("a", 170).start(10).steps(20).end();
    expect_partition(story.time());
    EXPECT_EQ(story.time().seconds, never_set.time().seconds) << set;
  }
  // On another machine, or after a reboot, only the dates are known.
  Story moved;
  moved.begin(0).on("a", 100).start(0).steps(10).published().failure();
  moved.begin(640).on("b", 140).start(10).steps(10).end();
  EXPECT_NEAR(moved.time().of(WallTime::kRestart), 640 - 15, 1e-6);
}

TEST(EffectiveTime, events_of_an_attempt_after_the_next_has_begun_are_ignored) {
  Story story;
  story.begin(0).start(0).steps(5).published().failure().begin(20).start(5).steps(5);
  Story late = story;
  late.as("attempt 0").wait(1000).consequence().as("attempt 1").wait(-1000).end();
  story.end();
  EXPECT_EQ(story.time().seconds, late.time().seconds);
}

TEST(EffectiveTime, nothing_is_said_of_a_run_that_never_held_its_folder) {
  EXPECT_FALSE(effective_time({}));
  Story story;
  story.as("waits").hang(0).failure();
  EXPECT_FALSE(effective_time(story.history()));
}

TEST(EffectiveTime, definitions_differ_in_what_they_divide) {
  Story story;
  story.begin(110, {.name = "1", .submitted = 10, .allocated = 100}).start(0).steps(80, 1, 0.25).span("checkpoint", 5);
  story.end();  // at 200
  std::map<std::string_view, double> shares;
  for (const EffectiveShare& share : effective_shares(story.time())) shares[share.name] = share.share;
  EXPECT_NEAR(shares["effective"], 80.0 / 190, 1e-9);
  EXPECT_NEAR(shares["megascale"], 80.0 / 100, 1e-9);
  EXPECT_NEAR(shares["goodput"], 60.0 / 90, 1e-9);
  EXPECT_NEAR(shares["ettr"], 85.0 / 190, 1e-9);
  double badput = 0;
  for (const auto& [name, seconds] : google_badput(story.time())) badput += seconds;
  EXPECT_NEAR(badput / 90 + shares["goodput"], 1, 1e-9);
}

TEST(EffectiveTime, the_doctors_time_is_diagnosis_and_messages_of_the_driver_are_no_progress) {
  Story story;
  story.driver(RunEventKind::kAttemptStart, 0, 0);
  story.begin(2).start(0).steps(10).published().failure();  // at 17
  story.driver(RunEventKind::kAttemptEnd, 0, 20);
  story.driver(RunEventKind::kSpan, 0, 28);  // five seconds of diagnosis
  story.driver(RunEventKind::kDecision, 0, 28).driver(RunEventKind::kExclusion, 0, 28);
  story.driver(RunEventKind::kAttemptStart, 1, 29);
  story.begin(31).start(10).steps(10).end();
  expect_seconds(story.time(), {{WallTime::kStartup, 4},
                                {WallTime::kLoad, 6},
                                {WallTime::kProductive, 20},
                                {WallTime::kDetection, 3},
                                {WallTime::kDiagnosis, 5},
                                {WallTime::kRestart, 6}});
}

// A node without power: no rank could report anything.
TEST(EffectiveTime, where_the_ranks_say_nothing_the_driver_does) {
  Story lost;
  lost.begin(2).start(0).steps(10).published().steps(2);  // at 19
  lost.driver_names("node lost", 0, 34, 40).begin(45).start(10).steps(10).end();
  expect_seconds(lost.time(), {{WallTime::kStartup, 4},
                               {WallTime::kLoad, 6},
                               {WallTime::kProductive, 20},
                               {WallTime::kRepeated, 2},
                               {WallTime::kDetection, 21},
                               {WallTime::kRestart, 5}});
  EXPECT_TRUE(lost.time().attempts[0].failed);
  EXPECT_EQ(lost.time().attempts[0].outcome, "node lost");
  Story early;  // it never reached a step
  early.begin(2).driver_names("node lost", 0, 34, 40);
  expect_seconds(early.time(), {{WallTime::kStartup, 32}, {WallTime::kDetection, 6}});
  // The ranks' own events take precedence over the driver's, and a normal end over both.
  Story failed, ended;
  failed.begin(2).start(0).steps(10).published().wait(3).failure().driver_names("device", 0, 21, 25);
  EXPECT_NEAR(failed.time().of(WallTime::kDetection), 5, 1e-5);
  ended.begin(2).start(0).steps(10).published().end(75).driver_names("GPU sick", 0, 18, 20);
  EXPECT_NEAR(ended.time().of(WallTime::kDetection), 0, 1e-5);
  EXPECT_FALSE(ended.time().attempts[0].failed);
}

}  // namespace
}  // namespace tri::test
