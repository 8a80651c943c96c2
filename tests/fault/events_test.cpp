// The event log: what is written, what a reader finds after a crash, and which event is the first cause.
#include "lib/fault/events.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "io/base/file.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

RunEvent failure(double time, int world_rank, Cause cause, const std::string& attempt = "a") {
  return {.time = time,
          .attempt = attempt,
          .kind = RunEventKind::kFailure,
          .world_rank = world_rank,
          .host = "node" + std::to_string(world_rank / 8),
          .text = "text of " + std::to_string(world_rank),
          .fields = {{"code", int64_t{4}}, {"consequence", cause == Cause::kPeer}}};
}

RunEvent hang(double time, double began, int world_rank) {
  return {.time = time,
          .attempt = "a",
          .kind = RunEventKind::kHang,
          .world_rank = world_rank,
          .text = "rank stopped",
          .fields = {{"began", began}}};
}

EventLog event_log_in(const std::string& path, int world_rank = 0, const std::string& attempt = "a") {
  return EventLog({.path = path,
                   .attempt = attempt,
                   .job = "4711",
                   .world_rank = world_rank,
                   .host = "node" + std::to_string(world_rank),
                   .gpu = "0000:18:00.0"});
}

int first_rank(const std::vector<RunEvent>& events) {
  const auto cause = first_cause(events, "a");
  return cause ? cause->world_rank : -1;
}

TEST(Events, an_event_comes_back_from_its_line) {
  const RunEvent event{.time = 1763812345.678,
                       .attempt = "attempt",
                       .job = "4711",
                       .kind = RunEventKind::kFailure,
                       .world_rank = 13,
                       .host = "node07",
                       .text = "a \"quoted\"\nline",
                       .fields = {{"code", int64_t{4}}, {"consequence", true}, {"gpu", std::string("0")}, {"s", 1.5}}};
  const std::string line = to_json(event);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto back = run_event_from(line);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->time, event.time);
  EXPECT_EQ(back->attempt, event.attempt);
  EXPECT_EQ(back->job, event.job);
  EXPECT_EQ(back->kind, event.kind);
  EXPECT_EQ(back->world_rank, event.world_rank);
  EXPECT_EQ(back->host, event.host);
  EXPECT_EQ(back->text, event.text);
  EXPECT_EQ(back->fields, event.fields);
  for (const auto& [kind, name] : EnumNames<RunEventKind>::table) {
    const auto again = run_event_from(to_json({.kind = kind}));
    ASSERT_TRUE(again) << name;
    EXPECT_EQ(again->kind, kind);
  }
}

TEST(Events, a_file_of_a_newer_release_is_refused_and_one_without_a_schema_is_read) {
  TemporaryFolder folder;
  const std::string path = folder / "events.jsonl", line = to_json({.attempt = "a"}), known = ",\"schema\":1}";
  ASSERT_TRUE(line.ends_with(known)) << line;
  const std::string start = line.substr(0, line.size() - known.size());
  write_all(path, start + "}\n" + line + "\n");
  const auto both = read_events(path);
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(both.value().size(), 2u);
  write_all(path, line + "\n" + start + ",\"schema\":2}\n");
  const auto newer = read_events(path);
  ASSERT_FALSE(newer);
  EXPECT_NE(newer.error().message.find(path + ": a newer release of Trireme wrote it (schema 2)"), std::string::npos)
      << newer.error().message;
}

TEST(Events, the_earliest_that_is_no_consequence_is_the_first_cause) {
  EXPECT_FALSE(first_cause({}, "a"));
  // Lines are in the order of writing, which is not that of the clock.
  EXPECT_EQ(first_rank({failure(12, 3, Cause::kHere), failure(11, 2, Cause::kHere), failure(10, 1, Cause::kPeer)}), 2);
  EXPECT_EQ(first_rank({failure(12, 3, Cause::kPeer), failure(11, 2, Cause::kPeer)}), 2);
  RunEvent start{.time = 1, .attempt = "a", .kind = RunEventKind::kStart, .world_rank = 0};
  EXPECT_EQ(first_rank({start, failure(12, 3, Cause::kPeer)}), 3);
  start.kind = RunEventKind::kEnd;
  EXPECT_EQ(first_rank({start}), -1);
}

TEST(Events, a_hang_counts_from_its_beginning) {
  RunEvent watchdog = failure(90, 0, Cause::kHere);
  watchdog.fields["code"] = static_cast<int64_t>(ExitCode::kWatchdog);
  EXPECT_EQ(first_rank({failure(20, 1, Cause::kHere), hang(60, 10, 5), watchdog}), 5);
  EXPECT_EQ(first_rank({failure(5, 1, Cause::kHere), hang(60, 10, 5), watchdog}), 1);
  EXPECT_EQ(first_rank({failure(5, 1, Cause::kPeer), hang(60, 10, 5), watchdog}), 5);
  EXPECT_EQ(first_rank({hang(60, 10, 5)}), 5);  // the watchdog could not write, or was killed
}

TEST(Events, a_hang_after_which_the_run_went_on_is_no_cause) {
  EXPECT_EQ(first_rank({hang(60, 10, 5), failure(3000, 1, Cause::kHere)}), 1);
  // ... on to another hang; several nodes may write about one hang.
  RunEvent watchdog = failure(3090, 0, Cause::kHere);
  watchdog.fields["code"] = static_cast<int64_t>(ExitCode::kWatchdog);
  EXPECT_EQ(first_rank({hang(60, 10, 5), hang(3060, 3010, 6), hang(3061, 3012, 7), watchdog}), 6);
  EXPECT_EQ(first_rank({hang(60, 10, 5), hang(3060, 3010, 6)}), 6);
  RunEvent end{.time = 3000, .attempt = "a", .kind = RunEventKind::kEnd, .world_rank = 0};
  EXPECT_EQ(first_rank({hang(60, 10, 5), end}), -1);
  end.attempt = "b";
  EXPECT_EQ(first_rank({hang(60, 10, 5), end}), 5);
}

TEST(Events, attempts_are_kept_apart) {
  const std::vector<RunEvent> events{failure(1, 1, Cause::kHere, "a"), failure(2, 2, Cause::kHere, "b")};
  EXPECT_EQ(first_cause(events, "a")->world_rank, 1);
  EXPECT_EQ(first_cause(events, "b")->world_rank, 2);
  EXPECT_FALSE(first_cause(events, "c"));
}

TEST(Events, torn_lines_are_passed_over_and_spoil_no_other) {
  const TemporaryFolder folder;
  const std::string path = folder / "events.jsonl";
  EXPECT_EQ(read_events(path).error().os_error, ENOENT);
  ASSERT_TRUE(event_log_in(path).append(RunEventKind::kStart, "", {{"ranks", int64_t{8}}}));
  const std::string whole = to_json(failure(3, 3, Cause::kHere));
  for (size_t bytes = 1; bytes < whole.size(); bytes += 7) {
    std::ofstream(path, std::ios::app) << whole.substr(0, bytes);  // its writer was killed here
    ASSERT_TRUE(event_log_in(path).append(RunEventKind::kFailure, "after it"));
  }
  std::ofstream(path, std::ios::app) << whole.substr(0, 10);
  const auto events = read_events(path);
  ASSERT_TRUE(events);
  ASSERT_EQ(events.value().size(), 1 + (whole.size() + 5) / 7);
  EXPECT_EQ(events.value().front().number("ranks", 0), 8);
  EXPECT_EQ(events.value().back().text, "after it");
}

TEST(Events, many_writers_and_kills_lose_no_line_that_was_written) {
  const TemporaryFolder folder;
  const std::string path = folder / "events.jsonl";
  constexpr int kWriters = 4, kLines = 50;
  std::vector<pid_t> writers;
  for (int w = 0; w <= kWriters; ++w) {
    const pid_t child = ::fork();
    if (child == 0) {
      const EventLog event_log = event_log_in(path, w);
      // The last of them writes until it is killed.
      for (int64_t i = 0; w == kWriters || i < kLines; ++i) event_log.append(RunEventKind::kFailure, "x", {{"i", i}});
      ::_exit(0);
    }
    writers.push_back(child);
  }
  for (int w = 0; w < kWriters; ++w) {
    int status = 0;
    ::waitpid(writers[static_cast<size_t>(w)], &status, 0);
    EXPECT_EQ(status, 0);
  }
  ::kill(writers.back(), SIGKILL);
  ::waitpid(writers.back(), nullptr, 0);
  const auto events = read_events(path);
  ASSERT_TRUE(events);
  std::vector<int64_t> next(kWriters, 0);
  for (const RunEvent& event : events.value())
    if (event.world_rank < kWriters) {
      EXPECT_EQ(event.number("i", -1), static_cast<double>(next[static_cast<size_t>(event.world_rank)]++));
    }
  for (const int64_t lines : next) EXPECT_EQ(lines, kLines);
}

// A full pipe simulates storage that hangs: a write to it blocks.
TEST(Events, storage_that_hangs_is_not_waited_for) {
  const TemporaryFolder folder;
  EXPECT_FALSE(event_log_in(folder / "absent/events.jsonl").append(RunEventKind::kStart, ""));
  const std::string path = folder / "events.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const EventLog event_log = event_log_in(path);
  const Descriptor pipe(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_GE(pipe.get(), 0);
  EXPECT_TRUE(event_log.append(RunEventKind::kStart, ""));
  while (::write(pipe.get(), "x", 1) == 1) continue;
  EXPECT_FALSE(event_log.append(RunEventKind::kStart, ""));
  EXPECT_FALSE(event_log.failure_hook()({.world_rank = 0, .code = ExitCode::kDevice, .text = "it broke"}));

  // The storage recovers: the blocked lines are written after all, and the threads end.
  ASSERT_EQ(::fcntl(pipe.get(), F_SETFL, 0), 0);
  char byte = 0;
  for (int lines = 0; lines < 3; lines += byte == '\n') ASSERT_EQ(::read(pipe.get(), &byte, 1), 1);
}

// More than a pipe holds: nothing waits, and nothing is lost when the storage recovers.
TEST(Events, posted_events_are_written_in_their_order_once_storage_goes_on) {
  const TemporaryFolder folder;
  const std::string path = folder / "events.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Descriptor pipe(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GE(pipe.get(), 0);
  const EventLog event_log = event_log_in(path);
  const EventLog other = event_log.of_attempt("another");
  constexpr int kEvents = 2000;
  for (int i = 0; i < kEvents; ++i) (i % 2 == 0 ? event_log : other).post(RunEventKind::kSpan, "", {{"i", int64_t{i}}});
  std::string line;
  for (int i = 0; i < kEvents;) {
    char byte = 0;
    ASSERT_EQ(::read(pipe.get(), &byte, 1), 1);
    if (byte != '\n') {
      line += byte;
      continue;
    }
    const auto event = run_event_from(line);
    ASSERT_TRUE(event) << line;
    EXPECT_EQ(event->number("i", -1), i);
    EXPECT_EQ(event->attempt, i % 2 == 0 ? "a" : "another");
    line.clear();
    ++i;
  }
}

TEST(Events, a_failing_rank_learns_the_first_cause_of_others) {
  const TemporaryFolder folder;
  const std::string path = folder / "events.jsonl";
  const auto own = event_log_in(path, 1).failure_hook()({.world_rank = 1, .code = ExitCode::kFile, .text = "no space"});
  EXPECT_FALSE(own);  // it is itself the first cause
  const auto other = event_log_in(path, 2).failure_hook()(
      {.world_rank = 2, .code = ExitCode::kComm, .cause = Cause::kPeer, .text = "remote error"});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->text, "rank 1 on node1 (GPU 0000:18:00.0): no space");
  EXPECT_EQ(other->code, ExitCode::kFile);
  const auto alone = event_log_in(path, 2, "another attempt")
                         .failure_hook()({.world_rank = 2, .cause = Cause::kPeer, .text = "remote error"});
  EXPECT_FALSE(alone);
}

TEST(Events, a_consequence_waits_for_the_cause_to_be_written) {
  const TemporaryFolder folder;
  const std::string path = folder / "events.jsonl";
  std::thread late([&] {
    // Starts once the consequence has been written.
    const auto is_written = [&] {
      const auto events = read_events(path);
      return events && !events.value().empty();
    };
    for (int i = 0; i < 30'000 && !is_written(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    event_log_in(path, 1).append(RunEventKind::kFailure, "burnt", {{"code", int64_t{4}}, {"consequence", false}});
  });
  const auto cause = event_log_in(path, 2).failure_hook()(
      {.world_rank = 2, .code = ExitCode::kComm, .cause = Cause::kPeer, .text = "remote error"});
  late.join();
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code, ExitCode::kDevice);
}

TEST(Events, the_end_of_a_silent_rank_is_written_by_its_neighbour) {
  const TemporaryFolder folder;
  const std::string path = folder / "events.jsonl";
  EXPECT_FALSE(event_log_in(path, 2).failure_hook()(
      {.world_rank = 3, .text = "process 17 has ended without reporting an error"}));
  const auto events = read_events(path);
  ASSERT_EQ(events.value().size(), 1u);
  EXPECT_EQ(events.value()[0].world_rank, 3);
  EXPECT_EQ(events.value()[0].number("seen_by", -1), 2);
  EXPECT_EQ(events.value()[0].string("gpu"), "");
}

}  // namespace
}  // namespace tri
