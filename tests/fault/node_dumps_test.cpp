// One rank of a node dumps, once per hang; other nodes take part.
#include "lib/fault/node_dumps.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "io/flight_recorder/flight_recorder.h"
#include "lib/fault/dump_folder.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr const char* kAttempt = "20260131T235959-3f2a9c01";

HangTrigger hang_of(int rank) { return {.world_rank = rank, .seconds = 30}; }

class NodeDumpsTest : public testing::Test {
 protected:
  NodeDumpsTest() {
    ::setenv("TRIREME_BLACK_BOXES", folder_.path().c_str(), 1);
    std::filesystem::create_directory(run_);
  }
  ~NodeDumpsTest() override {
    for (auto& recorder : records_) recorder->end_well();
    records_.clear();
    ::unsetenv("TRIREME_BLACK_BOXES");
  }

  void make_records(int size) {
    for (int rank = 0; rank < size; ++rank)
      records_.push_back(value_or_throw(FlightRecorder::create(
          {.world_rank = rank, .world_size = size, .attempt = kAttempt, .job = "", .run_dir = run_, .gpu = ""})));
  }
  // Creates the part of one rank.
  std::unique_ptr<NodeDumps> make_rank(int rank, const std::vector<int>& node_ranks) {
    const DumpingNode node{.run_dir = run_,
                           .attempt = kAttempt,
                           .host = "here",
                           .world_rank = rank,
                           .world_size = static_cast<int>(records_.size())};
    const auto reported = [this, rank](const DumpOutcome& outcome) {
      const std::lock_guard lock(mutex_);
      reports_.emplace_back(rank, outcome);
      changed_.notify_all();
    };
    return std::make_unique<NodeDumps>(node, records_[static_cast<size_t>(rank)]->path(), node_ranks, reported,
                                       std::chrono::milliseconds(1));
  }
  void await_reports(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reports_.size() >= count; });
  }

  const TemporaryFolder folder_;
  const std::string run_ = folder_ / "run";
  std::vector<std::unique_ptr<FlightRecorder>> records_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, DumpOutcome>> reports_;
};

TEST_F(NodeDumpsTest, one_rank_of_a_node_dumps_once_a_hang) {
  make_records(2);
  const auto first = make_rank(0, {0, 1}), second = make_rank(1, {0, 1});
  const int64_t standstill = FlightRecorder::now();
  EXPECT_EQ(second->known().claimed, 0);
  EXPECT_TRUE(second->claim(standstill, hang_of(1), 0, 0));
  EXPECT_FALSE(first->claim(standstill, hang_of(0), 0, 0));  // it has already been dumped
  EXPECT_FALSE(second->claim(standstill, hang_of(1), 0, 0));
  await_reports(1);
  EXPECT_EQ(reports_[0].first, 1);
  EXPECT_EQ(reports_[0].second.trigger.world_rank, 1);
  EXPECT_TRUE(reports_[0].second.wrote_report);
  EXPECT_EQ(recorded_ranks(reports_[0].second.folder), (std::vector<int>{0, 1}));
  const NodeDumps::Known known = second->known();
  EXPECT_GT(known.claimed, standstill);
  EXPECT_EQ(known.folder, reports_[0].second.folder);
  EXPECT_EQ(known.headline, reports_[0].second.verdict.headline);
  EXPECT_TRUE(known.speaks);
  EXPECT_EQ(first->known().claimed, 0);

  // The ranks continued and are stopped again.
  EXPECT_TRUE(first->claim(FlightRecorder::now(), hang_of(0), 0, 0));
  await_reports(2);
  EXPECT_EQ(reports_[1].first, 0);
  EXPECT_EQ(newest_dump(run_, kAttempt), 2);
}

TEST_F(NodeDumpsTest, a_requested_dump_does_not_replace_one_of_a_hang) {
  make_records(2);
  const auto first = make_rank(0, {0, 1}), second = make_rank(1, {0, 1});
  const int64_t standstill = FlightRecorder::now();
  EXPECT_TRUE(first->claim(standstill, {}, 0, 0));
  EXPECT_FALSE(second->claim(standstill, {}, 0, 0));
  EXPECT_TRUE(second->claim(standstill, hang_of(1), 0, 0));
  await_reports(2);
  EXPECT_EQ(newest_dump(run_, kAttempt), 2);
}

// Another user may place a link or a file where a rank's flight recorder is expected.
TEST_F(NodeDumpsTest, only_flight_records_of_this_user_are_written) {
  make_records(2);
  const std::string second_record = records_[1]->path(), elsewhere = folder_ / "elsewhere";
  std::filesystem::rename(second_record, elsewhere);
  std::filesystem::create_symlink(elsewhere, second_record);
  const auto rank = make_rank(0, {0, 1});
  EXPECT_TRUE(rank->claim(FlightRecorder::now(), hang_of(0), 0, 0));
  await_reports(1);
  EXPECT_EQ(records_[1]->image().dump_requested.load(), 0u) << "the link was followed";
  EXPECT_GT(records_[0]->image().dump_requested.load(), 0u);
}

// Nodes identify dumps by number: an accepted dump is carried out even if the next is accepted before.
TEST_F(NodeDumpsTest, none_that_was_taken_on_is_lost) {
  make_records(1);
  const auto rank = make_rank(0, {0});
  {
    const std::lock_guard busy(mutex_);  // the report of the first dump blocks its thread
    EXPECT_TRUE(rank->claim(FlightRecorder::now(), {}, 0, 0));
    while (!rank->known().done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(rank->claim(FlightRecorder::now(), hang_of(0), 0, 0));
    EXPECT_TRUE(rank->claim(FlightRecorder::now(), {}, 0, 0));
  }
  for (int i = 0; i < 300'000 && newest_dump(run_, kAttempt) < 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(newest_dump(run_, kAttempt), 3);
  await_reports(3);
  EXPECT_EQ(reports_[1].second.trigger.world_rank, 0);
}

TEST_F(NodeDumpsTest, other_nodes_take_part_and_the_first_reports_on_all) {
  make_records(3);
  const auto a = make_rank(0, {0}), b = make_rank(1, {1, 2}), idle = make_rank(2, {1, 2});
  EXPECT_TRUE(a->claim(FlightRecorder::now() - 1, hang_of(0), 0, 3600));  // waits for the records of b's ranks
  await_reports(1);
  EXPECT_EQ(reports_[0].first, 0);
  EXPECT_EQ(recorded_ranks(reports_[0].second.folder), (std::vector<int>{0, 1, 2}));
  // Its node took part in the hang's dump: when b's own deadline expires, nothing remains to be done.
  EXPECT_FALSE(idle->claim(FlightRecorder::now() - int64_t{3600} * 1'000'000'000, hang_of(2), 0, 0));
  EXPECT_EQ(list_dumps(run_).size(), 1u);
}

TEST_F(NodeDumpsTest, without_a_folder_the_verdict_is_known_all_the_same) {
  make_records(1);
  std::filesystem::remove(run_);
  std::ofstream(run_) << "in the way";
  const auto rank = make_rank(0, {0});
  EXPECT_TRUE(rank->claim(FlightRecorder::now(), hang_of(0), 0, 0));
  await_reports(1);
  EXPECT_NE(reports_[0].second.problem, "");
  const NodeDumps::Known known = rank->known();
  EXPECT_NE(known.headline, "");
  EXPECT_EQ(known.folder, "");
  EXPECT_EQ(known.problem, reports_[0].second.problem);
}

TEST_F(NodeDumpsTest, a_node_without_flight_recorders_has_nothing_to_dump) {
  make_records(1);
  const std::string path = records_[0]->path();
  const auto rank = make_rank(0, {0});
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_FALSE(rank->claim(FlightRecorder::now(), hang_of(0), 0, 0));
}

}  // namespace
}  // namespace tri
