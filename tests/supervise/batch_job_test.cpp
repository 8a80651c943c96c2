// A Slurm job between its starts: what it stores, how it interprets the trainer's status, and what Slurm reports.
#include "lib/supervise/batch_job.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/text_file.h"
#include "lib/fault/events.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/status/effective_time.h"
#include "lib/supervise/command.h"
#include "tests/io/checkpoint_files.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

// Without Slurm's commands, as in a container.
class WithoutSlurm : public ::testing::Test {
 protected:
  WithoutSlurm() : path_(std::getenv("PATH")) {
    ::setenv("PATH", folder.path().c_str(), 1);
    std::filesystem::create_directories(run);
  }
  ~WithoutSlurm() override { ::setenv("PATH", path_.c_str(), 1); }

  BatchJob::Options options_of(const std::string& job) const {
    return {.start = {.batch = {.job = job}},
            .folders = {.run = run, .checkpoints = run + "/checkpoints"},
            .controller_seconds = 0,
            .node_seconds = 0,
            .storage_seconds = 20};
  }

  const TemporaryFolder folder;
  const std::string run = folder / "run", state = run + "/slurm.state";

 private:
  const std::string path_;
};

TEST_F(WithoutSlurm, a_second_job_does_not_touch_a_run_that_is_under_way) {
  ASSERT_TRUE(BatchJob(options_of("6")).begin("2 ranks"));
  const std::string of_first = value_or_throw(read_text(state));
  EXPECT_EQ(job_of_record(of_first), "6");
  {
    const auto lock = RunLock::take({.run = run}, "attempt", {.job = "6"});
    ASSERT_TRUE(lock) << lock.error().message;
    const auto second = BatchJob(options_of("7")).begin("2 ranks");
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ExitCode::kUsage);
    EXPECT_NE(second.error().message.find("is the run of job 6, and process "), std::string::npos)
        << second.error().message;
    EXPECT_EQ(value_or_throw(read_text(state)), of_first);
  }
  ASSERT_TRUE(BatchJob(options_of("7")).begin("2 ranks")) << "the first one has ended";
  EXPECT_EQ(job_of_record(value_or_throw(read_text(state))), "7");
}

TEST_F(WithoutSlurm, a_state_file_of_a_newer_release_is_refused_and_kept) {
  const std::string newer = "schema=2\njob=7\nbest_step=90\n";
  value_or_throw(write_file(state, newer));
  const auto begun = BatchJob(options_of("7")).begin("2 ranks");
  ASSERT_FALSE(begun);
  EXPECT_EQ(
      begun.error().message,
      state + ": a newer release of Trireme wrote it (schema 2); this one reads schemas up to 1: use that release");
  EXPECT_EQ(value_or_throw(read_text(state)), newer);
}

TEST_F(WithoutSlurm, only_a_run_with_a_checkpoint_resumes) {
  const auto said = [&] {
    testing::internal::CaptureStderr();
    BatchJob job(options_of("7"));
    EXPECT_TRUE(job.begin("2 ranks"));
    EXPECT_TRUE(job.end(4).requeue);
    return testing::internal::GetCapturedStderr();
  };
  const std::string fresh = said();
  EXPECT_NE(fresh.find("the run starts from step 0, 0 steps lost"), fresh.npos) << fresh;
  EXPECT_NE(fresh.find("after step 0, no checkpoint beyond step 0\n"), fresh.npos) << fresh;
  EXPECT_EQ(fresh.find("resumes"), fresh.npos) << fresh;
  const std::string checkpoints = run + "/checkpoints";
  ASSERT_TRUE(write_checkpoint(checkpoints, 3, "a", {make_tensor(1, "model/w", StoredType::kF32, {2})}, 1, 1, 1));
  ASSERT_TRUE(publish(checkpoints, 3, "a"));
  const std::string later = said();
  EXPECT_NE(later.find("the run resumes from step 3, 0 steps lost"), later.npos) << later;
  EXPECT_NE(later.find("newest checkpoint: step 3\n"), later.npos) << later;
}

// Status 3 would have the batch script wait for storage and requeue the job.
TEST_F(WithoutSlurm, a_checkpoint_of_another_version_stops_the_job) {
  const std::string checkpoints = run + "/checkpoints";
  ASSERT_TRUE(write_checkpoint(checkpoints, 3, "a", {make_tensor(1, "model/w", StoredType::kF32, {2})}, 1, 1, 1));
  ASSERT_TRUE(publish(checkpoints, 3, "a"));
  set_other_format(checkpoints + "/step_00000003/manifest.json");
  const auto begun = BatchJob(options_of("7")).begin("2 ranks");
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ExitCode::kUsage);
  EXPECT_NE(begun.error().message.find("move " + checkpoints + "/step_00000003 to another folder"), std::string::npos)
      << begun.error().message;
}

// A pipe without a writer simulates storage that hangs: open() does not return.
TEST_F(WithoutSlurm, storage_that_hangs_is_an_error_after_a_while) {
  ASSERT_EQ(::mkfifo(state.c_str(), 0600), 0);
  BatchJob::Options options = options_of("7");
  options.storage_seconds = 0.2;
  const auto begun = BatchJob(options).begin("2 ranks");
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ExitCode::kFile);
  EXPECT_EQ(begun.error().message, state + ": storage does not respond");
  const Descriptor writer(::open(state.c_str(), O_RDWR | O_CLOEXEC));  // ends the read
  EXPECT_GE(writer.get(), 0);
}

// The job's last line and that of the training in it, which both count from the job's submission.
TEST_F(WithoutSlurm, the_end_reports_the_effective_time_that_the_training_reports) {
  const EventLog events({.path = run + "/events.jsonl", .attempt = "a", .job = "7", .world_rank = 0, .host = "node"});
  const double now = wall_seconds();
  events.append(RunEventKind::kBegin, "", {{"began", now - 60}, {"allocated", now - 60}, {"submitted", now - 100}});
  events.append(RunEventKind::kStart, "", {{"step", int64_t{0}}, {"metrics_bytes", int64_t{0}}});
  MetricsFile(run + "/metrics.jsonl").step({.step = 1, .step_ms = 50000});
  events.append(RunEventKind::kEnd, "", {{"code", int64_t{0}}});
  const EffectiveTime time = effective_time(value_or_throw(read_events_and_steps(run))).value();
  EXPECT_NEAR(time.effective(), 0.5, 0.1) << "of 100 s, with the queue";
  const std::string line = effective_time_line(time);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(BatchJob(options_of("7")).end(0).requeue);
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t number = line.find_first_of("0123456789");
  const std::string share = "effective training time " + line.substr(number, line.find('%') + 1 - number);
  EXPECT_NE(said.find("finished at step 1, " + share), std::string::npos) << said << line;
}

const JobRecord kFresh{.job = "7", .best_step = 40};

TEST(JobRecord, reads_back_equal) {
  const JobRecord record{.job = "7", .best_step = 120, .progress_restart = 3, .excluded = {"node1", "node2"}};
  EXPECT_EQ(job_record_from(to_text(record), kFresh, 5), record);
  EXPECT_EQ(job_record_from(to_text(kFresh), {.job = "7"}, 0), kFresh);
  EXPECT_TRUE(check_record_schema("slurm.state", to_text(record)));
  EXPECT_TRUE(check_record_schema("slurm.state", "job=7\n")) << "of an earlier release";
}

TEST(JobRecord, of_another_job_or_damaged_is_replaced) {
  EXPECT_EQ(job_record_from("job=6\nbest_step=900\n", kFresh, 2), kFresh);
  EXPECT_EQ(job_record_from("", kFresh, 2), kFresh);
  EXPECT_EQ(job_record_from("job=7\nbest_step=08x\nprogress_restart=99\nexcluded=a b;c\n=\n\x01=2\n", kFresh, 2),
            kFresh);
  EXPECT_EQ(job_record_from("job=7\nprogress_restart=-1\nbest_step=99999999999999999999\n", kFresh, 2), kFresh);
  EXPECT_EQ(job_of_record("# a comment\nbest_step=1\njob=4711\n"), "4711");
  EXPECT_EQ(job_of_record("job=47x\n"), "");
}

TEST(JobRecord, of_an_earlier_version_is_read) {
  const JobRecord record = job_record_from(
      "best_step=90\nhang_count=1\nhang_node=node3\njob=7\nleft_out=node3,node4\nprogress_restart=2\n", kFresh, 4);
  EXPECT_EQ(record, (JobRecord{"7", 90, 2, {"node3", "node4"}}));
}

TEST(JobComment, keeps_what_the_owner_has_written) {
  EXPECT_EQ(comment_with_progress("(null)", 2), "trireme-progress:2");
  EXPECT_EQ(comment_with_progress("", 2), "trireme-progress:2");
  EXPECT_EQ(comment_with_progress("project a", 2), "project a trireme-progress:2");
  EXPECT_EQ(comment_with_progress("project a trireme-progress:2", 13), "project a trireme-progress:13");
  EXPECT_EQ(comment_with_progress("trireme-progress:2 by me", 3), " by me trireme-progress:3");
}

TEST(JobComment, names_a_start_of_this_job_or_none) {
  EXPECT_EQ(progress_in_comment("project a trireme-progress:12", 12), 12);
  EXPECT_EQ(progress_in_comment("trireme-progress:12", 11), 0);
  EXPECT_EQ(progress_in_comment("trireme-progress:x", 11), 0);
  EXPECT_EQ(progress_in_comment("trireme-progress:99999999999999999999", 11), 0);
  EXPECT_EQ(progress_in_comment("", 11), 0);
}

TEST(SlurmJob, state_follows_from_what_scontrol_shows) {
  const auto state = [](const std::string& fields) {
    return job_state_of("JobId=7 JobName=a " + fields + " Comment=b\n", 2);
  };
  EXPECT_EQ(state("JobState=RUNNING Reason=None Requeue=1 Restarts=2"), JobState::kRunning);
  EXPECT_EQ(state("JobState=RUNNING Reason=None Requeue=0 Restarts=2"), JobState::kNoRequeue);
  EXPECT_EQ(state("JobState=RUNNING Reason=None Requeue=1 Restarts=3"), JobState::kRequeued);
  EXPECT_EQ(state("JobState=PENDING Reason=BeginTime Requeue=1 Restarts=3"), JobState::kRequeued);
  EXPECT_EQ(state("JobState=COMPLETING Reason=TimeLimit Requeue=1 Restarts=2"), JobState::kTimedOut);
  EXPECT_EQ(state("JobState=CANCELLED Reason=None Requeue=1 Restarts=2"), JobState::kCancelled);
  EXPECT_EQ(job_state_of("", 2), JobState::kUnknown);
}

TEST(SlurmJob, times_are_local_and_may_be_unknown) {
  EXPECT_EQ(slurm_time("Unknown"), 0);
  EXPECT_EQ(slurm_time(""), 0);
  EXPECT_EQ(slurm_time("2026-01-31T23:59:59x"), 0);
  EXPECT_EQ(slurm_time("2026-01-31T23:59:59") - slurm_time("2026-01-31T22:59:58"), 3601);
}

TEST(JobOutcome, of_every_status) {
  for (const int status : {1, 4, 5, 6, 75, 137, 139, 143})
    EXPECT_EQ(meaning_of(status).outcome, JobOutcome::kRequeue) << status;
  for (const int status : {2, 3, 7, 8, 42, 126, 127})
    EXPECT_EQ(meaning_of(status).outcome, JobOutcome::kStop) << status;
  EXPECT_EQ(meaning_of(0).outcome, JobOutcome::kFinished);
  EXPECT_EQ(meaning_of(139).text, "killed by signal 11");
}

TEST(Commands, give_their_output_and_status) {
  EXPECT_EQ(run_command({"sh", "-c", "echo one; echo two >&2; exit 3"}, 60).status, 3);
  EXPECT_EQ(run_command({"sh", "-c", "echo one; echo two >&2"}, 60).output, "one\n");
  EXPECT_EQ(run_command({"/no/such/command"}, 60).status, 127);
  EXPECT_EQ(run_command({"sh", "-c", "kill -KILL $$"}, 60).status, 128 + 9);
  EXPECT_EQ(split_lines("a\n\nb"), (std::vector<std::string>{"a", "b"}));
}

TEST(Commands, that_take_too_long_are_ended) {
  const auto result = run_command({"sleep", "600"}, 0.2);
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
}

TEST(Commands, that_have_closed_their_output_and_run_on_are_ended) {
  const auto result = run_command({"sh", "-c", "echo one; exec sleep 600 >&-"}, 0.5);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.output, "one\n");
}

}  // namespace
}  // namespace tri
