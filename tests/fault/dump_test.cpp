// A dump of ranks of two nodes: one folder, one record per rank, one report.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "io/base/json.h"
#include "io/flight_recorder/flight_recorder.h"
#include "io/flight_recorder/record_json.h"
#include "lib/fault/dump_folder.h"
#include "lib/fault/node_dump.h"
#include "lib/fault/stale_records.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr const char* kAttempt = "20260131T235959-3f2a9c01";

HangTrigger trigger_of(int rank) { return {.world_rank = rank, .phase = RunPhase::kLoad, .seconds = 30}; }

RankRecord record_of(int rank, const std::string& host) {
  RankRecord record;
  record.world_rank = rank;
  record.world_size = 4;
  record.host = host;
  record.attempt = kAttempt;
  return record;
}

// Flight recorders are in a folder of the test.
class Dump : public testing::Test {
 protected:
  Dump() {
    ::setenv("TRIREME_BLACK_BOXES", folder_.path().c_str(), 1);
    std::filesystem::create_directory(run_);
  }
  ~Dump() override { ::unsetenv("TRIREME_BLACK_BOXES"); }

  std::unique_ptr<FlightRecorder> make_record(int rank, int size) {
    return value_or_throw(FlightRecorder::create(
        {.world_rank = rank, .world_size = size, .attempt = kAttempt, .job = "", .run_dir = run_, .gpu = ""}));
  }

  const TemporaryFolder folder_;
  const std::string run_ = folder_ / "run";
};

TEST_F(Dump, all_nodes_write_to_the_folder_of_the_first) {
  std::vector<Result<DumpFolder>> joined(8, Error{});
  {
    std::vector<std::jthread> nodes;
    for (size_t i = 0; i < joined.size(); ++i)
      nodes.emplace_back([&, i] { joined[i] = join_dump(run_, kAttempt, 1, trigger_of(static_cast<int>(i))); });
  }
  int opened = 0;
  for (const auto& one : joined) {
    ASSERT_TRUE(one) << one.error().message;
    EXPECT_EQ(one.value().path, joined[0].value().path);
    opened += one.value().opened;
    // All know what triggered the first dump.
    EXPECT_EQ(one.value().trigger.world_rank, joined[0].value().trigger.world_rank);
    EXPECT_EQ(one.value().trigger.phase, RunPhase::kLoad);
    EXPECT_EQ(one.value().trigger.seconds, 30);
  }
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(list_dumps(run_), std::vector<std::string>{joined[0].value().path});  // those that came second left nothing
}

TEST_F(Dump, each_has_a_folder_of_its_own_and_a_number) {
  EXPECT_EQ(newest_dump(run_, kAttempt), 0);
  std::vector<std::string> paths;
  for (int number = 1; number <= 3; ++number) {
    const auto joined = join_dump(run_, kAttempt, number, trigger_of(number));
    ASSERT_TRUE(joined) << joined.error().message;
    EXPECT_TRUE(joined.value().opened);
    paths.push_back(joined.value().path);
    EXPECT_EQ(newest_dump(run_, kAttempt), number);
  }
  EXPECT_EQ(newest_dump(run_, "another"), 0);
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(list_dumps(run_), paths);
  EXPECT_EQ(std::unique(paths.begin(), paths.end()), paths.end());
  const auto again = join_dump(run_, kAttempt, 2, trigger_of(9));
  ASSERT_TRUE(again);
  EXPECT_FALSE(again.value().opened);
  EXPECT_EQ(again.value().trigger.world_rank, 2);
}

TEST_F(Dump, the_newest_are_kept) {
  std::vector<std::string> paths;
  for (int number = 1; number <= kKeptDumps + 3; ++number) {  // some of them within the same second
    paths.push_back(value_or_throw(join_dump(run_, kAttempt, number, trigger_of(number))).path);
    std::ofstream(paths.back() + "/rank_00000.json") << "{}";
  }
  EXPECT_EQ(list_dumps(run_), std::vector(paths.begin() + 3, paths.end()));
  size_t links = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run_ + "/hang")) links += entry.is_symlink();
  EXPECT_EQ(links, static_cast<size_t>(kKeptDumps));
  EXPECT_EQ(newest_dump(run_, kAttempt), kKeptDumps + 3);
}

TEST_F(Dump, a_run_that_has_no_folder_yet_gets_none) {
  const auto joined = join_dump(folder_ / "not locked", kAttempt, 1, trigger_of(0));
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message.find("the run had not created it yet"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "not locked"));
}

TEST_F(Dump, a_folder_that_cannot_be_made_is_an_error) {
  std::ofstream(folder_ / "file") << "in the way";
  const auto joined = join_dump(folder_ / "file", kAttempt, 1, trigger_of(0));
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message.find("file/hang"), std::string::npos) << joined.error().message;
}

TEST_F(Dump, the_first_report_stays) {
  const std::string dump = value_or_throw(join_dump(run_, kAttempt, 1, trigger_of(2))).path;
  EXPECT_FALSE(read_headline(dump));
  const std::vector<RankRecord> records = {record_of(0, "a"), record_of(1, "a"), record_of(2, "b"), record_of(3, "b")};
  HangVerdict verdict{.kind = HangKind::kHostBusy,
                      .suspects = {{3, HangKind::kHostBusy, "rank 3 computes"}},
                      .num_waiting = 3,
                      .headline = "rank 3 on b holds all up"};
  EXPECT_TRUE(value_or_throw(write_report(dump, records, trigger_of(2), verdict)));
  const std::string text = read_all(dump + "/report.txt");
  EXPECT_NE(text.find(verdict.headline), text.npos);
  const auto json = nlohmann::json::parse(read_all(dump + "/report.json"));
  EXPECT_EQ(json["headline"], verdict.headline);
  EXPECT_EQ(json["kind"], "host code busy");
  EXPECT_EQ(json["hosts"], (std::vector<std::string>{"b"}));
  EXPECT_EQ(json["culprits"][0]["rank"], 3);
  EXPECT_EQ(json["culprits"][0]["host"], "b");
  EXPECT_EQ(json["trigger"]["rank"], 2);
  EXPECT_EQ(json["trigger"]["phase"], "load");
  EXPECT_EQ(json["records"], 4);

  verdict.headline = "another";
  EXPECT_FALSE(value_or_throw(write_report(dump, records, trigger_of(2), verdict)));
  EXPECT_EQ(read_headline(dump), "rank 3 on b holds all up");
  EXPECT_EQ(read_all(dump + "/report.txt"), text);
  for (const auto& entry : std::filesystem::directory_iterator(dump))  // no temporary file remains
    EXPECT_TRUE(entry.path().extension() == ".txt" || entry.path().extension() == ".json") << entry.path();
}

TEST_F(Dump, a_fault_of_the_program_accuses_no_host) {
  const std::vector<RankRecord> records = {record_of(0, "a"), record_of(1, "b")};
  for (const HangKind kind : {HangKind::kCycle, HangKind::kUnknown}) {
    const HangVerdict verdict{.kind = kind, .suspects = {{0, kind, "x"}, {1, kind, "y"}}, .headline = "h"};
    EXPECT_TRUE(nlohmann::json::parse(report_json(records, trigger_of(0), verdict))["hosts"].empty());
  }
}

TEST_F(Dump, of_one_node_has_records_stacks_and_a_report) {
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  DumpingNode node{.run_dir = run_, .attempt = kAttempt, .host = "here", .world_rank = 1, .world_size = 2};
  for (int rank = 0; rank < 2; ++rank) {
    recorders.push_back(make_record(rank, 2));
    node.recorders.push_back(recorders.back()->path());
    node.images.push_back(&recorders.back()->image());
  }
  recorders[1]->log_line("step 7");
  std::string located;
  bool reported = false;
  const DumpOutcome outcome =
      dump_node(node, {.number = 1, .trigger = trigger_of(1), .answer_seconds = 0, .timeout_seconds = 0},
                [&](const DumpOutcome& known) {
                  if (located.empty()) {
                    EXPECT_TRUE(list_dumps(run_).empty());  // regardless of the storage's state
                  }
                  located = known.verdict.headline;
                  EXPECT_NE(located, "");
                  // The job may end before all records are written.
                  if (known.wrote_report) {
                    EXPECT_TRUE(recorded_ranks(known.folder).empty());
                  }
                  reported |= known.wrote_report;
                });
  EXPECT_TRUE(reported);
  EXPECT_EQ(outcome.problem, "");
  EXPECT_TRUE(outcome.opened && outcome.wrote_report);
  EXPECT_EQ(outcome.verdict.headline, located);
  EXPECT_EQ(read_headline(outcome.folder), located);
  EXPECT_EQ(recorded_ranks(outcome.folder), (std::vector<int>{0, 1}));
  for (const auto& recorder : recorders) EXPECT_EQ(recorder->image().dump_requested, 1u);
  const auto records = read_records(outcome.folder, recorded_ranks(outcome.folder));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].process_state, ProcessState::kRuns);
  ASSERT_EQ(records[1].log.size(), 1u);
  EXPECT_EQ(records[1].log[0].text, "step 7");
  EXPECT_FALSE(records[1].stacks.empty());  // at least the entry of /proc for this thread
  for (const auto& recorder : recorders) recorder->end_well();
}

TEST_F(Dump, the_headline_is_known_where_nothing_can_be_written) {
  const auto recorder = make_record(0, 1);
  std::ofstream(folder_ / "file") << "in the way";
  const DumpingNode node{.run_dir = folder_ / "file",
                         .attempt = kAttempt,
                         .host = "here",
                         .recorders = {recorder->path()},
                         .images = {&recorder->image()}};
  std::string located;
  const DumpOutcome outcome = dump_node(node, {.number = 1, .trigger = trigger_of(0), .answer_seconds = 0},
                                        [&](const DumpOutcome& known) { located = known.verdict.headline; });
  EXPECT_NE(outcome.problem, "");
  EXPECT_FALSE(outcome.wrote_report);
  EXPECT_NE(located, "");
  recorder->end_well();
}

TEST_F(Dump, a_node_reads_the_records_of_the_others_and_reports_their_verdict_if_there_is_one) {
  const auto recorder = make_record(2, 4);
  const DumpingNode node{.run_dir = run_,
                         .attempt = kAttempt,
                         .host = "b",
                         .world_rank = 2,
                         .world_size = 4,
                         .recorders = {recorder->path()},
                         .images = {&recorder->image()}};
  // The first node, a, has opened the dump and died: b writes the report, of all existing records.
  const std::string dump = value_or_throw(join_dump(run_, kAttempt, 1, trigger_of(0))).path;
  for (const int rank : {0, 1, 3}) ASSERT_TRUE(write_record(dump, record_of(rank, "a")));
  const auto nothing = [](const DumpOutcome&) {};
  const DumpOrder first{.number = 1, .trigger = trigger_of(2), .answer_seconds = 0, .timeout_seconds = -3};
  DumpOutcome outcome = dump_node(node, first, nothing);
  EXPECT_EQ(outcome.problem, "");
  EXPECT_FALSE(outcome.opened);
  EXPECT_TRUE(outcome.wrote_report);
  EXPECT_EQ(outcome.trigger.world_rank, 0);
  EXPECT_EQ(nlohmann::json::parse(read_all(dump + "/report.json"))["records"], 4);

  // In the next dump a has already written it.
  const std::string next = value_or_throw(join_dump(run_, kAttempt, 2, trigger_of(0))).path;
  const std::vector<RankRecord> records = {record_of(0, "a")};
  ASSERT_TRUE(write_report(next, records, trigger_of(0), HangVerdict{.headline = "what a says"}));
  std::string located;
  const DumpOrder second{.number = 2, .trigger = trigger_of(2), .answer_seconds = 0, .timeout_seconds = 3600};
  outcome = dump_node(node, second, [&](const DumpOutcome& known) { located = known.verdict.headline; });
  EXPECT_EQ(outcome.folder, next);
  EXPECT_FALSE(outcome.wrote_report);
  EXPECT_EQ(located, "what a says");
  EXPECT_EQ(recorded_ranks(next), std::vector<int>{2});
  recorder->end_well();
}

// Makes the flight recorder look like that of a process that has ended, created `age` seconds ago.
void make_stale(FlightRecorder& recorder, int64_t age) {
  recorder.image().process = 999'999'999;
  const timespec then{std::time(nullptr) - age, 0}, times[] = {then, then};
  ASSERT_EQ(::utimensat(AT_FDCWD, recorder.path().c_str(), times, 0), 0);
}

TEST_F(Dump, stale_records_are_removed_and_others_stay) {
  const auto living = make_record(0, 3), dead = make_record(1, 3), old = make_record(2, 3);
  make_stale(*dead, 3600);
  make_stale(*old, 25 * 3600);
  std::ofstream(folder_ / "trireme.recorder.no.0") << "no flight recorder";
  EXPECT_EQ(remove_stale_records("/another/run"), 1);
  EXPECT_FALSE(std::filesystem::exists(old->path()));
  EXPECT_TRUE(std::filesystem::exists(dead->path()));
  EXPECT_EQ(remove_stale_records(run_), 1);
  EXPECT_FALSE(std::filesystem::exists(dead->path()));
  EXPECT_TRUE(std::filesystem::exists(living->path()));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "trireme.recorder.no.0"));
  living->end_well();
}

// After an update of the program, in another container, or if a start was killed before its file was named.
TEST_F(Dump, stale_records_of_other_versions_and_containers_are_removed) {
  const auto other = make_record(0, 4), fresh = make_record(1, 4), alive = make_record(2, 4),
             container = make_record(3, 4);
  for (FlightRecorder* recorder : {other.get(), fresh.get(), alive.get()})
    recorder->image().version = flight::kVersion + 1;
  make_stale(*other, 25 * 3600);
  make_stale(*fresh, 3600);
  const auto touch = [](const std::string& path, int64_t age) {
    const timespec then{std::time(nullptr) - age, 0}, times[] = {then, then};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  touch(alive->path(), 25 * 3600);
  container->image().process_namespace += 1;
  touch(container->path(), 25 * 3600);
  const std::string half = folder_ / "trireme.recorder.killed.0.tmp", begun = folder_ / "trireme.recorder.begun.0.tmp";
  for (const std::string& path : {half, begun}) std::ofstream(path) << "";
  touch(half, 25 * 3600);
  EXPECT_EQ(remove_stale_records("/another/run"), 2);
  EXPECT_FALSE(std::filesystem::exists(other->path()));
  EXPECT_FALSE(std::filesystem::exists(half));
  for (const std::string& path : {fresh->path(), alive->path(), container->path(), begun})
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  // Its process is invisible from here and has stored nothing for a day.
  container->image().beat -= 25 * 3600 * int64_t{1'000'000'000};
  for (flight::Event& event : container->image().events) event.time -= 25 * 3600 * int64_t{1'000'000'000};
  container->image().created -= 25 * 3600 * int64_t{1'000'000'000};
  EXPECT_EQ(remove_stale_records("/another/run"), 1);
  EXPECT_FALSE(std::filesystem::exists(container->path()));
  alive->end_well();
}

}  // namespace
}  // namespace tri
