// trireme status: from hand-made flight recorders of processes that run, are stopped or have ended, and from a run's
// files.
#include "lib/observe/status/run_status.h"
#include "io/base/json.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "io/base/host.h"
#include "io/checkpoint/run_lock.h"
#include "io/flight_recorder/flight_recorder.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
constexpr const char* kAttempt = "20261122T154400-0000000a";

class RunStatusTest : public testing::Test {
 protected:
  RunStatusTest() {
    fs::create_directories(run_dir_);
    fs::create_directories(records_);
    write_all(run_dir_ + "/config.yaml", "run: {}\n");
    ::setenv("TRIREME_BLACK_BOXES", records_.c_str(), 1);
  }
  ~RunStatusTest() override {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    ::unsetenv("TRIREME_BLACK_BOXES");
  }

  std::unique_ptr<FlightRecorder> make_record(int world_rank, int world_size, const std::string& attempt = kAttempt,
                                              const std::string& run_dir = "") const {
    return value_or_throw(FlightRecorder::create({.world_rank = world_rank,
                                                  .world_size = world_size,
                                                  .grid = unnamed_grid(world_size / 2, 1, 2),
                                                  .attempt = attempt,
                                                  .job = "4711",
                                                  .run_dir = run_dir.empty() ? run_dir_ : run_dir,
                                                  .gpu = "0000:18:00.0"}));
  }
  // A rank in the 13th step of 20; the previous step took `milliseconds`.
  static void train(FlightRecorder& recorder, int milliseconds = 100) {
    recorder.end_step(int64_t{1'000'000} * milliseconds);
    recorder.begin_step(13, 20);
    const uint32_t action = recorder.enqueue_action(ComputeKind::kForward, 1, 3);
    recorder.image().action_entered = action;
    recorder.image().action_running = action;
    recorder.enter(HostState::kAwaitsDevice);
  }
  // Shifts all events of the flight recorder by `seconds` into the past.
  static void grow_old(FlightRecorder& recorder, int64_t seconds) {
    for (flight::Event& event : recorder.image().events) event.time -= seconds * 1'000'000'000;
  }
  // A rank whose process runs `last` once its flight recorder exists; returns when the process is stopped or has ended.
  template <class Last>
  void start_rank(int world_rank, int world_size, Last last) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto recorder = make_record(world_rank, world_size);
      train(*recorder);
      grow_old(*recorder, 60);
      last(*recorder);
      ::_exit(1);  // the flight recorder remains
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) children_.push_back(child);
  }

  RunStatus status() const { return value_or_throw(read_run_status(run_dir_)); }
  EventLog event_log(int world_rank, const std::string& attempt = kAttempt) const {
    return EventLog({.path = run_dir_ + "/events.jsonl",
                     .attempt = attempt,
                     .job = "4711",
                     .world_rank = world_rank,
                     .host = "node07"});
  }

  const TemporaryFolder folder_;
  const std::string run_dir_ = folder_ / "runs/mine", records_ = folder_ / "boxes";
  std::vector<pid_t> children_;
};

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in\n" << text;
}

TEST_F(RunStatusTest, a_supervised_run_between_two_attempts_is_restarting) {
  const EventLog first = event_log(-1);
  first.append(RunEventKind::kAttemptStart, "", {{"number", int64_t{1}}});
  first.append(RunEventKind::kBegin, "");
  first.append({.kind = RunEventKind::kFailure, .world_rank = 5, .host = "node07", .text = "killed by signal 9"});
  EXPECT_EQ(status().state, RunState::kFailed) << "nothing supervises it any more";
  const auto lock = RunLock::take_for_driver(run_dir_, kAttempt);
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_EQ(status().state, RunState::kRestarts);
  expect_has(status().restart, "attempt 1 failed: rank 5 on node07: killed by signal 9; the supervisor ends");

  first.append(RunEventKind::kAttemptEnd, "rank 5 was killed",
               {{"number", int64_t{1}}, {"cause", std::string("death")}});
  first.append(RunEventKind::kDecision, "the first fault", {{"action", std::string("retry")}});
  expect_has(status_text(status()), ": restarting\n");
  expect_has(status().restart,
             "attempt 1 ended: death: rank 5 was killed; another attempt on the same nodes: the first fault");
  const std::string second = "20261122T154500-0000000b";
  event_log(-1, second).append(RunEventKind::kAttemptStart, "", {{"number", int64_t{2}}});
  EXPECT_EQ(status().state, RunState::kRestarts);
  expect_has(status().restart, "attempt 2 was launched");
  expect_has(status_json(status()), "\"state\": \"restarting\"");
  event_log(0, second).append(RunEventKind::kBegin, "");
  EXPECT_EQ(status().state, RunState::kUnknown) << "its ranks run on another machine";
}

TEST_F(RunStatusTest, the_drivers_cause_counts_if_no_rank_recorded_one) {
  const EventLog driver = event_log(-1);
  driver.append(RunEventKind::kAttemptStart, "", {{"number", int64_t{1}}});
  const auto end_with = [&](const std::string& cause, const std::string& text) {
    driver.append(RunEventKind::kAttemptEnd, text, {{"number", int64_t{1}}, {"cause", cause}});
  };
  end_with("drained", "stopped on request");
  EXPECT_EQ(status().state, RunState::kUnknown) << "no failure";
  end_with("file or checkpoint", "the launcher ended with status 3");
  EXPECT_EQ(status().state, RunState::kFailed);
  expect_has(status_text(status()), ": file or checkpoint: the launcher ended with status 3\n");

  event_log(5).append(RunEventKind::kFailure, "burnt", {{"code", int64_t{4}}, {"consequence", false}});
  expect_has(status_text(status()), ": rank 5 on node07: burnt\n");
}

TEST_F(RunStatusTest, slow_ranks_are_said_until_they_are_slow_no_more) {
  const auto recorder = make_record(0, 4);
  train(*recorder);
  const EventLog mine = event_log(0);
  const auto append = [&](int rank, bool over) {
    RunEvent event{.kind = RunEventKind::kStraggler, .world_rank = rank, .host = fmt::format("node0{}", rank)};
    event.time = 1;
    event.text = fmt::format("rank {} on node0{} computes 12 % longer", rank, rank);
    event.fields = {{"slowdown", 0.12}, {"over", over}};
    mine.append(event);
  };
  append(3, false), append(2, false), append(3, true), append(1, false);
  const RunStatus now = status();
  ASSERT_EQ(now.stragglers.size(), 2u);
  EXPECT_EQ(now.stragglers[0].world_rank, 1);
  expect_has(status_text(now), "rank 2 on node02 computes 12 % longer");
  EXPECT_EQ(status_text(now).find("rank 3 on"), std::string::npos);
  expect_has(status_json(now), "\"slowdown\": 0.12");
}

TEST_F(RunStatusTest, the_newest_evaluation_that_counts_is_seen) {
  const auto evaluation_after = [&](const std::string& lines) {
    write_all(run_dir_ + "/metrics.jsonl", lines);
    return status().validation;
  };
  EXPECT_FALSE(evaluation_after(R"({"step":11,"step_ms":200,"loss":2.5,"time":1})"
                                "\n"));
  std::string lines = R"({"step":10,"validation_loss":3}
{"step":10,"validation":{"web":4}}
{"step":20,"step_ms":200,"time":1}
{"step":20,"validation_loss":2}
)";
  EXPECT_EQ(evaluation_after(lines).value().step, 20);
  EXPECT_TRUE(evaluation_after(lines).value().by_name.empty());
  lines += R"({"restart":1,"step":15,"lost_steps":5,"time":1})"
           "\n";
  for (int step = 16; step < 5000; ++step)
    lines += fmt::format(R"({{"step":{},"step_ms":200,"time":1}})"
                         "\n",
                         step);
  for (int i = 0; i < 300; ++i) lines += "{\"filler\":\"" + std::string(1000, 'x') + "\"}\n";
  const auto undone = evaluation_after(lines);
  ASSERT_TRUE(undone);
  EXPECT_EQ(undone->step, 10);
  EXPECT_EQ(undone->loss, 3);
  EXPECT_EQ(undone->by_name.size(), 1u);
  EXPECT_FALSE(value_or_throw(read_run_status(run_dir_, EvaluationSearch::kRecent)).validation);
}

TEST_F(RunStatusTest, a_run_is_seen_while_it_runs) {
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  for (const int rank : {0, 1, 2, 3}) train(*recorders.emplace_back(make_record(rank, 4)), rank == 2 ? 150 : 100);
  write_all(run_dir_ + "/metrics.jsonl",
            R"({"step":11,"step_ms":9000,"tokens_per_s":1}
{"restart":1,"step":11,"lost_steps":0,"time":1}
{"step":10,"step_ms":30000,"tokens_per_s":10,"loss":2.5,"time":1}
{"step":11,"step_ms":200,"tokens_per_s":1500,"loss":2.5,"imbalance":0.25,"time":1}
{"step":12,"step_ms":100,"tokens_per_s":3000,"loss":2.25,"imbalance":0.5,"time":2}
{"step":12,"validation_loss":7}
{"step":12,"validation":{"web":2.5,"code":null}}
{"experts":{"step":12,"layers":[{"layer":1,"max_load":2.5,"dead":0,"entropy":0.9,"loads":[250,25,25,100]},)"
            R"({"layer":2,"max_load":2,"dead":2,"entropy":0.5,"loads":[200,200,0,0]}]}}
{"step":13,"step_ms":1)");
  event_log(0).append(RunEventKind::kHang, "rank 3 was slow");  // a dump, after which the run continued
  const RunStatus now = status();
  EXPECT_EQ(now.state, RunState::kRuns);
  EXPECT_EQ(now.attempt, kAttempt);
  EXPECT_EQ(now.world_size, 4);
  EXPECT_EQ(now.ranks.size(), 4u);
  EXPECT_EQ(now.step, 12);
  EXPECT_EQ(now.steps, 20);
  ASSERT_TRUE(now.rate);
  EXPECT_DOUBLE_EQ(now.rate->seconds_per_step, 0.2);  // from this attempt's three complete lines
  EXPECT_DOUBLE_EQ(now.rate->tokens_per_s, 1500);
  EXPECT_EQ(now.rate->loss, 2.25);
  ASSERT_TRUE(now.slowest);
  EXPECT_EQ(now.slowest->world_rank, 2);
  EXPECT_DOUBLE_EQ(now.slowest->of_median, 1.5);
  EXPECT_FALSE(now.hang);
  EXPECT_FALSE(now.cause);

  const std::string text = status_text(now);
  expect_has(text, "runs/mine: runs\n");
  expect_has(
      text,
      "step 12 of 20: 200 ms a step, 5 steps/s, 1.50k tok/s (median of the last 3 steps), loss 2.2500, busiest dp +50 "
      "%, ETA 1.6 s");
  expect_has(text, "validation at step 12: loss 7.0000, code not finite, web 2.5000\n");
  expect_has(text, "experts at step 12: fullest expert 2.50 x the mean (layer 1), 2 dead (in 1 layer)");
  expect_has(text, "slowest rank: 2, 150 ms for its last step, 1.50 x the median");
  expect_has(text, "forward of microbatch 3, chunk 1");
  expect_has(text, "awaits its device");
  expect_has(text, std::to_string(::getpid()) + " runs");
  EXPECT_EQ(text.find("other machines"), std::string::npos);
  const auto json = nlohmann::json::parse(status_json(now));
  EXPECT_EQ(json["state"], "runs");
  EXPECT_EQ(json["rate"]["step_ms"], 200);
  EXPECT_EQ(json["rate"]["imbalance"], 0.5);
  EXPECT_EQ(json["validation"]["loss"], 7);
  EXPECT_EQ(json["validation"]["by_name"]["web"], 2.5);
  EXPECT_TRUE(json["validation"]["by_name"]["code"].is_null());
  EXPECT_EQ(json["experts"]["step"], 12);
  EXPECT_EQ(json["experts"]["dead"], 2);
  EXPECT_EQ(json["experts"]["entropy"], 0.5);
  EXPECT_EQ(json["slowest"]["rank"], 2);
  EXPECT_EQ(json["ranks"].size(), 4u);
  EXPECT_EQ(json["ranks"][3]["place"]["pp"], 1);
  EXPECT_EQ(json["ranks"][3]["step"], 13);
  EXPECT_EQ(json["ranks"][3]["process_state"], "runs");
  EXPECT_TRUE(json["hang"].is_null());
  EXPECT_TRUE(json["cause"].is_null());
}

TEST_F(RunStatusTest, only_records_of_this_run_and_its_newest_attempt_count) {
  const auto older = make_record(0, 2, "20261122T154359-ffffffff"),
             other = make_record(1, 2, kAttempt, folder_ / "elsewhere"), mine = make_record(1, 2);
  fs::create_directory_symlink(run_dir_, folder_ / "link");
  const auto linked = read_run_status(folder_ / "link");
  ASSERT_TRUE(linked);
  ASSERT_EQ(linked.value().ranks.size(), 1u);
  EXPECT_EQ(linked.value().ranks[0].world_rank, 1);
  EXPECT_EQ(linked.value().ranks[0].attempt, kAttempt);
  const std::string text = status_text(linked.value());
  expect_has(text, "1 rank is on other machines");
  expect_has(text, "srun --overlap --jobid=4711 --ntasks-per-node=1 trireme status " + run_dir_);

  // A later attempt ran on other machines: these flight recorders describe the past.
  event_log(0, "20261122T154401-00000000")
      .append(RunEventKind::kStart, "", {{"ranks", int64_t{16}}, {"steps", int64_t{9}}});
  const RunStatus later = status();
  EXPECT_TRUE(later.ranks.empty());
  EXPECT_EQ(later.world_size, 16);
  EXPECT_EQ(later.steps, 9);
  EXPECT_EQ(later.state, RunState::kUnknown);
}

TEST_F(RunStatusTest, a_stopped_rank_holds_the_run_up) {
  start_rank(0, 2, [](FlightRecorder&) { ::raise(SIGSTOP); });
  const auto other = make_record(1, 2);
  train(*other);
  EXPECT_EQ(status().state, RunState::kRuns);  // its last event was just now
  EXPECT_FALSE(status().hang);
  grow_old(*other, 60);
  const RunStatus now = status();
  EXPECT_EQ(now.state, RunState::kStalled);
  EXPECT_GE(*now.newest_event_age, 60);
  EXPECT_EQ(now.ranks[0].process_state, ProcessState::kStopped);
  ASSERT_TRUE(now.hang);
  ASSERT_FALSE(now.hang->suspects.empty());
  EXPECT_EQ(now.hang->suspects[0].world_rank, 0);
  EXPECT_EQ(now.hang->suspects[0].kind, HangKind::kProcessStopped);
  const std::string text = status_text(now);
  expect_has(text, ": no progress for 1m00s");
  expect_has(text, now.hang->headline);
  const auto json = nlohmann::json::parse(status_json(now));
  EXPECT_EQ(json["hang"]["culprits"][0]["rank"], 0);
  EXPECT_EQ(json["hang"]["culprits"][0]["host"], host_name());
}

// As while a checkpoint is written, or while the first step waits for autotuning.
TEST_F(RunStatusTest, a_run_that_continues_without_events_is_not_stalled) {
  const auto recorder = make_record(0, 1);
  train(*recorder);
  grow_old(*recorder, 60);
  EXPECT_EQ(status().state, RunState::kStalled);
  for (const bool writer : {false, true}) {
    std::atomic<bool> seen{false};
    std::thread works([&] {
      while (!seen) {
        writer ? recorder->writer_goes_on() : recorder->tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    // A query takes half a second, in which a busy machine may not run the thread.
    RunState state = RunState::kStalled;
    for (int look = 0; look < 100 && state == RunState::kStalled; ++look) state = status().state;
    EXPECT_EQ(state, RunState::kRuns);
    seen = true;
    works.join();
  }
}

TEST_F(RunStatusTest, no_rank_is_blamed_while_ranks_are_out_of_sight) {
  start_rank(0, 3, [](FlightRecorder&) { ::raise(SIGSTOP); });
  const auto other = make_record(1, 3);
  train(*other);
  grow_old(*other, 60);
  const RunStatus now = status();
  EXPECT_EQ(now.state, RunState::kStalled);
  EXPECT_FALSE(now.hang);
  expect_has(status_text(now), "the cause is unknown here, since some ranks run elsewhere");
}

TEST_F(RunStatusTest, records_that_were_left_behind_name_the_first_cause) {
  start_rank(0, 2, [](FlightRecorder& recorder) { recorder.failure(5, true, "group tp: remote error"); });
  ::usleep(2000);
  start_rank(1, 2, [](FlightRecorder& recorder) { recorder.failure(4, false, "the device has burnt"); });
  const RunStatus now = status();
  EXPECT_EQ(now.state, RunState::kFailed);
  ASSERT_TRUE(now.cause);
  EXPECT_EQ(now.cause->world_rank, 1);
  EXPECT_EQ(now.ranks[1].process_state, ProcessState::kGone);
  expect_has(status_text(now), "(GPU 0000:18:00.0): the device has burnt");
  EXPECT_EQ(nlohmann::json::parse(status_json(now))["cause"]["rank"], 1);
}

TEST_F(RunStatusTest, ranks_without_reports_are_gone) {
  for (const int rank : {0, 1}) start_rank(rank, 2, [](FlightRecorder&) {});
  EXPECT_EQ(status().state, RunState::kGone);
  expect_has(status_text(status()), "ended without an error message");
}

TEST_F(RunStatusTest, the_end_is_read_from_events) {
  event_log(5).append(RunEventKind::kFailure, "no GPU", {{"code", int64_t{4}}, {"consequence", false}});
  expect_has(status_text(status()), fmt::format("attempt {}, job 4711\nstep 0\n", kAttempt));
  fs::remove(run_dir_ + "/events.jsonl");
  event_log(0).append(RunEventKind::kStart, "", {{"ranks", int64_t{8}}, {"step", int64_t{3}}, {"steps", int64_t{20}}});
  event_log(3).append(RunEventKind::kFailure, "remote error", {{"code", int64_t{5}}, {"consequence", true}});
  event_log(5).append(RunEventKind::kFailure, "burnt", {{"code", int64_t{4}}, {"consequence", false}});
  RunStatus now = status();
  EXPECT_EQ(now.state, RunState::kFailed);
  EXPECT_EQ(now.step, 3);
  expect_has(status_text(now), ": rank 5 on node07: burnt\n");

  const std::string next = "20261122T154500-0000000b";
  event_log(0, next).append(RunEventKind::kStart, "", {{"ranks", int64_t{8}}});
  EXPECT_EQ(status().state, RunState::kUnknown);  // it runs elsewhere, or was killed
  EXPECT_EQ(status().step, 0);
  event_log(0, next).append(RunEventKind::kEnd, "stopped by a signal", {{"code", int64_t{75}}});
  now = status();
  EXPECT_EQ(now.state, RunState::kEnded);
  EXPECT_FALSE(now.cause);
  expect_has(status_text(now), "with status 75: stopped by a signal");
  EXPECT_EQ(nlohmann::json::parse(status_json(now))["end"]["code"], 75);
  event_log(0, next).append(RunEventKind::kEnd, "no space", {{"code", int64_t{3}}});
  EXPECT_EQ(status().state, RunState::kFailed);
}

// A full disk: the ranks had no time to remove their flight recorders, but the run has reported why it ended.
TEST_F(RunStatusTest, a_run_that_ended_with_a_reason_is_reported_with_it) {
  event_log(0).append(RunEventKind::kStart, "", {{"ranks", int64_t{2}}, {"step", int64_t{0}}, {"steps", int64_t{9}}});
  event_log(0).append(RunEventKind::kEnd, "no space left", {{"code", int64_t{3}}});
  write_all(run_dir_ + "/log.txt", "first\nerror: no space left\n");
  for (const bool recorders : {false, true}) {
    if (recorders) start_rank(0, 2, [](FlightRecorder&) {});
    const RunStatus now = status();
    EXPECT_EQ(now.state, RunState::kFailed);
    const std::string text = status_text(now);
    expect_has(text, "with status 3: no space left");
    for (const char* wrong : {"without an error message", "other machines", "last line of log.txt"})
      EXPECT_EQ(text.find(wrong), text.npos) << text;
  }
}

TEST_F(RunStatusTest, a_job_that_never_read_its_config_is_looked_up_in_its_log) {
  const std::string fresh = folder_ / "fresh";
  fs::create_directory(fresh);
  write_all(fresh + "/slurm-17.log", "site.sh: exit 1\n");
  const auto refused = read_run_status(fresh);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  expect_has(refused.error().message, fresh + "/slurm-17.log");
}

TEST_F(RunStatusTest, files_without_processes_still_give_a_status) {
  write_all(run_dir_ + "/metrics.jsonl",
            "{\"step\":7,\"step_ms\":100,\"tokens_per_s\":1000,\"loss\":null,\"time\":2}\n");
  write_all(run_dir_ + "/log.txt", "first\nlast words\n");
  const RunStatus now = status();
  EXPECT_EQ(now.state, RunState::kUnknown);
  EXPECT_EQ(now.step, 7);
  const std::string text = status_text(now);
  expect_has(text, "step 7: 100 ms a step, 10 steps/s, 1.00k tok/s (median of the last 1 step), loss not finite");
  expect_has(text, "last line of log.txt: last words");
  const std::string skipped = "{\"step\":9,\"no_targets\":true,\"step_ms\":100,\"tokens_per_s\":1000,\"time\":3}\n";
  write_all(run_dir_ + "/metrics.jsonl", skipped);
  expect_has(status_text(status()), "(median of the last 1 step), no targets");
  write_all(run_dir_ + "/metrics.jsonl",
            "{\"step\":8,\"step_ms\":100,\"tokens_per_s\":1000,\"loss\":2.5,\"time\":2}\n" + skipped);
  expect_has(status_text(status()), "step 9: 100 ms a step");
  expect_has(status_text(status()), "(median of the last 2 steps), loss 2.5000");
  expect_has(text, "no rank of this run has a flight recorder on this machine");
  write_all(run_dir_ + "/events.jsonl", "{\"kind\":\"begin\",\"schema\":99}\n");
  expect_has(status_text(status()), "events.jsonl: a newer release of Trireme wrote it (schema 99)");
}

TEST_F(RunStatusTest, a_folder_that_is_no_run_is_the_users_mistake) {
  EXPECT_EQ(read_run_status(folder_ / "nowhere").error().code, ExitCode::kUsage);
  EXPECT_EQ(read_run_status(records_).error().code, ExitCode::kUsage);
  EXPECT_EQ(read_hang_dump(folder_ / "nowhere", "").error().code, ExitCode::kUsage);
}

TEST_F(RunStatusTest, many_ranks_are_grouped_and_those_that_differ_come_first) {
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  for (int rank = 0; rank < 40; ++rank) {
    train(*recorders.emplace_back(make_record(rank, 40)));
    if (rank == 7 || rank == 20) recorders.back()->enter(HostState::kAwaitsData);
  }
  const std::string text = status_text(status());
  const std::string table = text.substr(text.find("\n\n") + 2);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  expect_has(table, "7, 20\n");
  expect_has(table, "0-6, 8-19, 21-39\n");
  EXPECT_LT(table.find("7, 20\n"), table.find("0-6,"));
}

TEST_F(RunStatusTest, the_newest_dump_or_the_named_one_is_shown) {
  EXPECT_EQ(read_hang_dump(run_dir_, "").error().code, ExitCode::kFile);
  for (const std::string name : {"20261122T160000", "20261122T150000"}) {
    fs::create_directories(run_dir_ + "/hang/" + name);
    write_all(run_dir_ + "/hang/" + name + "/report.txt", "text " + name);
    write_all(run_dir_ + "/hang/" + name + "/report.json", "{\"headline\":\"" + name + "\"}");
  }
  fs::create_directory_symlink("20261122T150000", run_dir_ + "/hang/20261122T170000-0000000a.1");
  fs::create_directories(run_dir_ + "/hang/20261122T180000");  // its report has not been written yet
  EXPECT_EQ(read_hang_dump(run_dir_, "").value().text, "text 20261122T160000");
  EXPECT_EQ(read_hang_dump(run_dir_, "20261122T150000").value().text, "text 20261122T150000");
  EXPECT_EQ(read_hang_dump(run_dir_, run_dir_ + "/hang/20261122T150000").value().text, "text 20261122T150000");
  EXPECT_EQ(read_hang_dump(run_dir_, "20261122T150000").value().json, "{\"headline\":\"20261122T150000\"}");
  EXPECT_EQ(read_hang_dump(run_dir_, "20261122T170000").error().code, ExitCode::kUsage);
  expect_has(status_text(status()), "hang/20261122T160000 (`trireme status");
}

// The clock was an hour fast, and NTP sets it back while the run continues.
TEST_F(RunStatusTest, a_step_is_as_old_as_the_monotonic_clock_says) {
  const auto recorder = make_record(0, 1);
  train(*recorder);
  for (const int64_t seconds : {3600, -3600}) {
    recorder->image().created_realtime += seconds * 1'000'000'000;  // like a start before the clock was set
    write_all(run_dir_ + "/metrics.jsonl",
              fmt::format(R"({{"step":12,"step_ms":100,"tokens_per_s":3000,"loss":2.25,"time":{:.3f}}})"
                          "\n",
                          static_cast<double>(recorder->image().created_realtime) * 1e-9));
    const RunStatus now = status();
    ASSERT_TRUE(now.rate);
    EXPECT_LT(now.rate->age, 600);
    recorder->image().created_realtime -= seconds * 1'000'000'000;
  }
}

// Names of attempts begin with dates.
TEST_F(RunStatusTest, the_newest_attempt_is_the_one_that_began_last_whatever_the_clock_said) {
  event_log(0, "20260601T120000-aaaaaaaa").append(RunEventKind::kBegin, "");
  event_log(0, "20260601T110000-bbbbbbbb").append(RunEventKind::kBegin, "");  // set back by an hour meanwhile
  EXPECT_EQ(status().attempt, "20260601T110000-bbbbbbbb");
  const auto old_record = make_record(0, 2, "20260601T120000-aaaaaaaa");
  old_record->image().created -= 3600 * int64_t{1'000'000'000};
  EXPECT_EQ(status().attempt, "20260601T110000-bbbbbbbb");
  const auto recorder = make_record(0, 2, "20260601T113000-cccccccc");  // it will lock the run folder in a moment
  EXPECT_EQ(status().attempt, "20260601T113000-cccccccc");
}

}  // namespace
}  // namespace tri
