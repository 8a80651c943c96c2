// What the driver knows of a run's past, from the events that it wrote itself.
#include "lib/supervise/history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/base/within.h"
#include "lib/supervise/driver.h"
#include "tests/io/checkpoint_files.h"

namespace tri {
namespace {

constexpr double kHour = 3600;

RunEvent at(double time, RunEvent event, const std::string& attempt = "a") {
  event.time = time;
  event.attempt = attempt;
  event.job = "job";
  return event;
}
std::vector<std::string> excluded(const std::vector<RunEvent>& events, double now) {
  std::vector<std::string> nodes;
  for (const Exclusion& exclusion : history_from(events, now).exclusions) nodes.push_back(exclusion.node);
  return nodes;
}
using Names = std::vector<std::string>;

TEST(History, an_attempt_comes_back_from_its_events) {
  const PastAttempt attempt{
      .number = 3,
      .attempt = "a",
      .nodes = {"node1", "node2"},
      .from_step = 10,
      .checkpoint = 20,
      .step = 25,
      .cause = {.kind = CauseKind::kGpuSuspect, .node = "node2", .world_rank = 5, .status = 75, .text = "why"}};
  const std::vector<RunEvent> events{at(100, start_event(attempt)), at(200, end_event(attempt)),
                                     at(300, start_event({.number = 4, .from_step = 20}), "b")};
  const RunHistory history = history_from(events, 400);
  ASSERT_EQ(history.attempts.size(), 2u);
  const PastAttempt& first = history.attempts[0];
  EXPECT_EQ(first.number, 3);
  EXPECT_EQ(first.nodes, attempt.nodes);
  EXPECT_EQ(std::pair(first.began, first.ended), std::pair(100.0, 200.0));
  EXPECT_EQ(std::tuple(first.from_step, first.checkpoint, first.step), std::tuple(10, 20, 25));
  EXPECT_EQ(first.cause.kind, CauseKind::kGpuSuspect);
  EXPECT_EQ(first.cause.node, "node2");
  EXPECT_EQ(first.cause.world_rank, 5);
  EXPECT_EQ(first.cause.status, 75);
  EXPECT_EQ(first.cause.text, "why");
  EXPECT_EQ(history.attempts[1].ended, 0) << "no process was left to record it";
  EXPECT_EQ(history.attempts[1].from_step, 20);
}

TEST(History, the_step_of_a_failure_goes_before_the_last_that_was_seen) {
  const PastAttempt attempt{.attempt = "a", .step = 25, .cause = {.kind = CauseKind::kNotFinite, .step = 31}};
  const std::vector<RunEvent> events{at(100, start_event(attempt)), at(200, end_event(attempt))};
  EXPECT_EQ(history_from(events, 400).attempts[0].step, 31);
  EXPECT_EQ(history_from(events, 400).attempts[0].cause.step, 31);
  const PastAttempt silent{.attempt = "a", .step = 25};
  const std::vector<RunEvent> seen{at(100, start_event(silent)), at(200, end_event(silent))};
  EXPECT_EQ(history_from(seen, 400).attempts[0].step, 25);
  EXPECT_EQ(history_from(seen, 400).attempts[0].cause.step, -1) << "it was only seen there";
}

TEST(History, every_cause_comes_back_by_its_name) {
  for (const auto& [kind, name] : EnumNames<CauseKind>::table) {
    const PastAttempt attempt{.attempt = "a", .cause = {.kind = kind}};
    const auto line = run_event_from(to_json(at(2, end_event(attempt))));
    ASSERT_TRUE(line);
    EXPECT_EQ(history_from(std::vector{at(1, start_event(attempt)), *line}, 3).attempts[0].cause.kind, kind) << name;
  }
}

TEST(History, exclusions_expire_and_are_cleared) {
  std::vector<RunEvent> events{
      at(0, exclusion_event({.node = "node1", .why = "lost", .since = 0, .until = 24 * kHour})),
      at(kHour, exclusion_event({.node = "node2", .why = "sick", .since = kHour, .until = 25 * kHour}))};
  EXPECT_EQ(excluded(events, 2 * kHour), (Names{"node1", "node2"}));
  EXPECT_EQ(excluded(events, 24 * kHour - 1), (Names{"node1", "node2"}));
  EXPECT_EQ(excluded(events, 24 * kHour), Names{"node2"});
  EXPECT_EQ(excluded(events, 25 * kHour), Names{});
  events.push_back(at(3 * kHour, clear_exclusion_event("node2")));
  EXPECT_EQ(excluded(events, 4 * kHour), Names{"node1"});
  events.push_back(at(5 * kHour, exclusion_event({.node = "node2", .why = "again", .since = 0, .until = 29 * kHour})));
  EXPECT_EQ(excluded(events, 26 * kHour), Names{"node2"});
  EXPECT_EQ(history_from(events, 26 * kHour).exclusions[0].why, "again");
}

TEST(History, the_event_log_keeps_them_past_torn_lines_and_across_drivers) {
  const TemporaryFolder folder;
  const double now = 1e9;
  {
    RunFolderLog event_log(folder / "", folder / "checkpoints", "1");
    EXPECT_TRUE(event_log.history(now).attempts.empty());
    event_log.append(start_event({.number = 1, .nodes = {"node1"}}), "a");
    event_log.append(exclusion_event({.node = "node1", .why = "lost", .until = now + kHour}), "a");
  }
  std::ofstream(folder / "events.jsonl", std::ios::app) << R"({"time":17638)";
  RunFolderLog event_log(folder / "", folder / "checkpoints", "2");
  ASSERT_EQ(event_log.history(now).exclusions.size(), 1u);
  EXPECT_EQ(event_log.history(now).exclusions[0].node, "node1");
  EXPECT_EQ(event_log.history(now).attempts.size(), 1u);
  EXPECT_TRUE(event_log.history(now + kHour).exclusions.empty());
  event_log.append(clear_exclusion_event("node1"), "");
  EXPECT_TRUE(event_log.history(now).exclusions.empty());
}

// Temporarily unavailable storage must not end exclusions.
TEST(History, what_was_known_stays_known_while_the_event_log_is_unreadable) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  std::filesystem::create_directories(run);
  RunFolderLog event_log(run, folder / "checkpoints", "1");
  event_log.append(start_event({.number = 1, .nodes = {"node1"}}), "a");
  event_log.append(exclusion_event({.node = "node1", .why = "lost", .until = 1e9 + kHour}), "a");
  std::filesystem::rename(run, folder / "away");
  EXPECT_EQ(event_log.history(1e9).exclusions.size(), 1u);
  EXPECT_EQ(event_log.history(1e9).attempts.size(), 1u);
  event_log.append(exclusion_event({.node = "node2", .why = "sick", .until = 1e9 + kHour}), "a");  // cannot be written
  EXPECT_EQ(event_log.history(1e9).exclusions.size(), 2u);
  std::filesystem::rename(folder / "away", run);
  EXPECT_EQ(event_log.history(1e9).exclusions.size(), 2u) << "and after it is back";
}

// A folder in place of events.jsonl refuses every line at once, like a full file system.
TEST(History, events_that_storage_has_refused_are_written_later) {
  const TemporaryFolder folder;
  const std::string events = folder / "events.jsonl";
  RunFolderLog event_log(folder / "", folder / "checkpoints", "1");
  event_log.append(start_event({.number = 1, .nodes = {"node1"}}), "a");
  std::filesystem::rename(events, folder / "aside");
  std::filesystem::create_directory(events);
  event_log.append(exclusion_event({.node = "node1", .why = "lost", .until = 1e9 + kHour}), "a");
  event_log.append(exclusion_event({.node = "node2", .why = "sick", .until = 1e9 + kHour}), "b");
  EXPECT_EQ(event_log.history(1e9).exclusions.size(), 2u);
  std::filesystem::remove(events);
  std::filesystem::rename(folder / "aside", events);
  for (int call = 0; call < 3; ++call) EXPECT_EQ(event_log.history(1e9).exclusions.size(), 2u);
  const auto written = read_events(events);
  ASSERT_TRUE(written);
  ASSERT_EQ(written.value().size(), 3u) << "each of them once";
  EXPECT_EQ(written.value()[1].host, "node1");
  EXPECT_EQ(written.value()[2].attempt, "b");
}

void save_checkpoint(const std::string& dir, int64_t step) {
  const std::vector<TestTensor> tensors{make_tensor(1, "model/w", StoredType::kF32, {6, 5})};
  const auto written = write_checkpoint(dir, step, "a", tensors, 2, 3, 1);
  ASSERT_TRUE(written) << written.error().message;
  const auto published = publish(dir, step, "a");
  ASSERT_TRUE(published) << published.error().message;
}

// Otherwise the budget of attempts without a newer checkpoint would never be used up.
TEST(History, a_damaged_checkpoint_is_no_progress) {
  const TemporaryFolder folder;
  const std::string dir = folder / "checkpoints";
  RunFolderLog event_log(folder / "", dir, "1");
  EXPECT_EQ(event_log.newest_checkpoint(), 0);
  save_checkpoint(dir, 1);
  EXPECT_EQ(event_log.newest_checkpoint(), 1);
  save_checkpoint(dir, 2);
  std::filesystem::resize_file(dir + "/step_00000002/shard_00001.h5", 100);
  EXPECT_EQ(event_log.newest_checkpoint(), 1) << "a shard is cut off";
  save_checkpoint(dir, 3);
  std::filesystem::remove(dir + "/step_00000003/manifest.json");
  EXPECT_EQ(event_log.newest_checkpoint(), 1) << "the manifest is gone";
  save_checkpoint(dir, 4);
  EXPECT_EQ(event_log.newest_checkpoint(), 4);
}

// Opening a FIFO blocks until it is opened for writing. When the answer is due, the folder can no longer be listed: a
// later call can only return what the search has stored.
TEST(History, a_checkpoint_that_was_found_too_late_is_known_to_the_next_call) {
  const TemporaryFolder folder;
  const std::string dir = folder / "checkpoints";
  save_checkpoint(dir, 1);
  std::filesystem::create_directory(dir + "/step_00000002");
  const std::string fifo = dir + "/step_00000002/manifest.json";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  RunFolderLog event_log(folder / "", dir, "1", std::chrono::milliseconds(50));
  EXPECT_EQ(event_log.newest_checkpoint(), 0) << "not known yet";
  {
    const std::ofstream open_it(fifo);
    int64_t free = 0;  // no query about the folder is in progress
    for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         free == 0 && std::chrono::steady_clock::now() < until;
         std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      free = OutstandingQuestion::begin(dir, std::chrono::milliseconds(0));
    ASSERT_NE(free, 0) << "the search has not ended";
    OutstandingQuestion::end(dir, free);
  }
  std::filesystem::rename(dir, folder / "away");
  std::ofstream(dir) << "not a folder";
  EXPECT_EQ(event_log.newest_checkpoint(), 1);
}

}  // namespace
}  // namespace tri
