// A report's text about a hang, on hand-written records.
#include "tests/fault/hang_records.h"

namespace tri {
namespace {

using namespace hand_written;

TEST(HangReport, shows_the_record_of_the_suspect) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");
  r[1].stacks.push_back({.thread = 8, .name = "idle", .frames = {3}, .symbols = {"futex_wait"}});
  r[1].stacks.push_back({.thread = 7, .name = "train", .frames = {1, 2}, .symbols = {"spin_for_ever", "forward"}});
  r[1].log.push_back({.seconds = 61, .text = "step 4 loss 3.2"});
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  const std::string report = hang_report(r.all, kDeadline, verdict);
  EXPECT_EQ(report.find(verdict.headline + "\n"), 0u);
  EXPECT_TRUE(has(report, "rank 0 has made no progress in step for 1m00s"));
  EXPECT_TRUE(has(report, "step 4 loss 3.2"));
  EXPECT_TRUE(has(report, "#0  spin_for_ever"));
  EXPECT_LT(report.find("spin_for_ever"), report.find("futex_wait")) << "the busiest thread first";
  for (const char* row : {"\n0     pp0 dp0 tp0  node00  runs ", "\n3     pp0 dp0 tp3  node00  runs "})
    EXPECT_TRUE(has(report, row));
  EXPECT_TRUE(has(report, "all-gather 11 on tp of rank 1\n"));
}

TEST(HangReport, of_many_ranks_those_alike_share_a_row) {
  Records r(1, 32, 4);
  r.join_but(77, "world");
  r[77].process_state = ProcessState::kStopped;
  const std::string report = hang_report(r.all, kDeadline, locate_hang(r.all, kDeadline));
  EXPECT_TRUE(has(report, "\n127 x: 0-76, 78-127 "));
  EXPECT_TRUE(has(report, "pp0 dp19 tp1  node19  stopped"));
  EXPECT_LT(std::count(report.begin(), report.end(), '\n'), 30);
}

TEST(HangReport, shows_the_edges_of_a_circle) {
  Records r(1, 1, 3);
  // Rank 0 waits for 1 on the world, 1 for 0 on tp: neither has enqueued what the other waits for.
  r.joins(0, "world");
  r.joins(1, "tp");
  for (const int rank : {0, 1, 2}) r.idle(rank);
  r.joins(2, "world");
  r.joins(2, "tp");
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kCycle);
  EXPECT_EQ(named(verdict), (std::vector{0, 1}));
  EXPECT_EQ(verdict.num_waiting, 1);
  const std::string report = hang_report(r.all, kDeadline, verdict);
  EXPECT_TRUE(has(report, "wait for each other in a cycle; no node is at fault"));
  for (const HangEdge& edge : verdict.cycle) EXPECT_TRUE(has(report, "  " + edge.text + "\n"));
}

}  // namespace
}  // namespace tri
