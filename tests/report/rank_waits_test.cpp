#include "lib/report/rank_waits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "lib/fault/dump_folder.h"
#include "tests/io/temporary_folder.h"
#include "tests/report/synthetic/synthetic_run.h"

namespace tri {
namespace {

TEST(RankWaits, of_a_dump_lead_from_every_rank_to_the_one_that_stopped) {
  const auto records = records_of_stopped_job();
  const RankWaits waits = waits_of_dump(records);
  EXPECT_EQ(waits.source, RankWaits::Source::kDump);
  EXPECT_EQ(waits.grid, unnamed_grid(2, 2, 2));
  EXPECT_EQ(waits.num_waits, static_cast<int64_t>(waits.waits.size()));
  std::vector<bool> leads(8);
  leads[kStoppedRank] = true;
  for (size_t round = 0; round < leads.size(); ++round)
    for (const RankWait& wait : waits.waits) {
      EXPECT_NE(wait.waiter, wait.awaited);
      if (leads[static_cast<size_t>(wait.awaited)]) leads[static_cast<size_t>(wait.waiter)] = true;
    }
  EXPECT_EQ(std::count(leads.begin(), leads.end(), true), 8);
  EXPECT_TRUE(std::any_of(waits.waits.begin(), waits.waits.end(), [](const RankWait& wait) {
    return wait.awaited == kStoppedRank && wait.what.find(" on tp") != std::string::npos;
  }));
}

TEST(RankWaits, keep_every_axis_of_the_job) {
  const RankGrid grid{{{"tp", 2}, {"dp", 1}, {"pp", 2}, {"x", 2}}};
  auto records = records_of_stopped_job();
  for (RankRecord& record : records) record.grid = grid;
  EXPECT_EQ(waits_of_dump(records).grid, grid);
  std::vector<TimelineSegment> segments;
  for (int rank = 0; rank < grid.world_size(); ++rank)
    segments.push_back({.world_rank = rank, .world_size = grid.world_size(), .place = place_on_axes(grid, rank)});
  EXPECT_EQ(waits_of_steps(segments, {1, 2}).grid, grid);
  for (TimelineSegment& segment : segments)
    for (AxisPlace& on : segment.place) on.size = 0;  // as in segments of earlier versions
  EXPECT_EQ(waits_of_steps(segments, {1, 2}).grid, grid);
}

TEST(RankWaits, of_records_that_do_not_know_their_mesh_there_are_none) {
  auto records = records_of_stopped_job();
  for (RankRecord& record : records) record.grid = unnamed_grid(2, 7, 2);
  EXPECT_TRUE(waits_of_dump(records).waits.empty());
  EXPECT_TRUE(waits_of_dump({}).waits.empty());
}

TEST(RankWaits, of_a_folder_name_the_suspect_and_show_its_waiters_first) {
  const TemporaryFolder folder;
  std::vector<std::string> remarks;
  EXPECT_TRUE(read_rank_waits(folder.path().string(), remarks).empty());
  const auto records = records_of_stopped_job();
  const HangTrigger trigger{.world_rank = 0, .seconds = 60};
  const auto dump = join_dump(folder.path().string(), "attempt", 1, trigger);
  ASSERT_TRUE(dump) << dump.error().message;
  for (const RankRecord& record : records) ASSERT_TRUE(write_record(dump.value().path, record));
  EXPECT_TRUE(read_rank_waits(folder.path().string(), remarks).empty()) << "it has no report yet";
  ASSERT_TRUE(write_report(dump.value().path, records, trigger, locate_hang(records, trigger)));
  const auto found = read_rank_waits(folder.path().string(), remarks);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].suspects, std::vector{kStoppedRank});
  EXPECT_NE(found[0].headline.find("rank 5 [pp1 dp0 tp1]"), std::string::npos) << found[0].headline;
  EXPECT_EQ(found[0].title, "dump " + std::filesystem::path(dump.value().path).filename().string());
  ASSERT_FALSE(found[0].waits.empty());
  EXPECT_EQ(found[0].waits.front().awaited, kStoppedRank);
  EXPECT_TRUE(remarks.empty());
}

// Two ranks, of which rank 1 joins one all-reduce 3 ms late in each of two steps.
std::vector<TimelineSegment> two_segments() {
  constexpr int64_t kMs = 1'000'000;
  std::vector<TimelineSegment> segments;
  for (int rank = 0; rank < 2; ++rank) {
    TimelineSegment segment{.world_rank = rank,
                            .world_size = 2,
                            .place = {{"pp"}, {"dp", rank}, {"tp"}},
                            .host = "a",
                            .attempt = "a",
                            .steps = {1, 2}};
    segment.streams = {"compute", "dp"};
    segment.names = {"dp"};
    segment.channels = {{"dp", ChannelKind::kCollectives, {0, 1, 2}, rank}};
    for (int step = 1; step <= 2; ++step) {
      const int64_t zero = 100 * kMs * step;
      segment.transfers.push_back({.joined = zero + (rank == 1 ? 3 * kMs : 0),
                                   .completed = zero + 4 * kMs,
                                   .sequence = static_cast<uint32_t>(step),
                                   .step = step,
                                   .channel = 0,
                                   .join_stream = 1,
                                   .arrive_stream = 1,
                                   .operation = ChannelOperation::kAllReduce});
      if (rank == 0)
        segment.spans.push_back(
            {.begin = zero, .end = zero + 4 * kMs, .step = step, .stream = 0, .name = 0, .kind = SpanKind::kWait});
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

TEST(RankWaits, of_recorded_steps_are_means_of_a_step) {
  const RankWaits waits = waits_of_steps(two_segments(), {1, 2});
  EXPECT_EQ(waits.source, RankWaits::Source::kSteps);
  EXPECT_EQ(waits.title, "steps 1 to 2");
  EXPECT_EQ(waits.grid, unnamed_grid(1, 2, 1));
  ASSERT_EQ(waits.waits.size(), 1u);
  EXPECT_EQ(waits.waits[0].waiter, 0);
  EXPECT_EQ(waits.waits[0].awaited, 1);
  EXPECT_EQ(waits.waits[0].what, "dp");
  EXPECT_NEAR(waits.waits[0].seconds, 3e-3, 1e-9);
}

}  // namespace
}  // namespace tri
