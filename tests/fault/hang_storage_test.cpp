// The locator on data readers and storage, on records that are written by hand.
#include "tests/fault/hang_records.h"

namespace tri {
namespace {

using namespace hand_written;

class Feeds : public Records {
 public:
  // Rank 0 reads for all, of which all have taken turn 4.
  Feeds() : Records(1, 4, 1) {
    for (RankRecord& record : all) {
      idle(record.world_rank);
      record.host_state = HostState::kAwaitsData;
      record.feeds[0] = {.reader = 0, .wanted = 5};
    }
    all[0].feeds[0].reader_state = ReaderState::kReads;
    all[0].feeds[0].published = 4;
    all[0].feeds[0].seconds = kSilent;
  }
};

TEST(HangLocator, a_reader_that_does_not_read_is_told) {
  Feeds r;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kDataReader);
  EXPECT_EQ(named(verdict), std::vector{0});
  EXPECT_EQ(verdict.num_waiting, 3);
  EXPECT_TRUE(has(verdict.headline, "reader of training tokens does not go on after turn 4"));
  EXPECT_TRUE(has(verdict.headline, "turn 5 of its training tokens"));
}

TEST(HangLocator, a_reader_waits_for_its_slowest_taker) {
  Feeds r;
  r[0].feeds[0].reader_state = ReaderState::kAwaitsTakers;
  r[2].feeds[0].wanted = 2;
  r[2].host_state = HostState::kWorks;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kHostBusy);
  EXPECT_EQ(named(verdict), std::vector{2});
  EXPECT_EQ(verdict.num_waiting, 3);
}

TEST(HangLocator, a_rank_that_does_not_take_what_was_read_is_told) {
  Feeds r;
  r[0].feeds[0].published = 5;
  r[0].feeds[0].reader_state = ReaderState::kAwaitsTakers;
  for (const int rank : {0, 1, 2}) r.joins(rank, "job");
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kDataReader);
  EXPECT_EQ(named(verdict), std::vector{3});
}

TEST(HangLocator, a_reader_in_a_stopped_process_is_the_processs_fault) {
  Feeds r;
  r[0].process_state = ProcessState::kStopped;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kProcessStopped);
  EXPECT_EQ(verdict.num_waiting, 3);
}

TEST(HangLocator, a_writer_without_progress_is_storage) {
  Records r(1, 1, 4);
  for (RankRecord& record : r.all) {
    r.idle(record.world_rank);
    if (record.world_rank != 2) r.joins(record.world_rank, "job");
  }
  r[2].host_state = HostState::kAwaitsCheckpoint;
  r[2].writer = {.state = WriterState::kWrites, .progress = 3, .step = 100, .seconds = kSilent};
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kStorage);
  EXPECT_EQ(named(verdict), std::vector{2});
  EXPECT_TRUE(has(verdict.headline, "its writer of checkpoint 100 writes"));
}

TEST(HangLocator, lines_that_storage_does_not_take_are_storage) {
  Records r(1, 1, 4);
  for (RankRecord& rank : r.all) rank.last_event_seconds = 0.1;  // steps go on
  r[0].writer = {.state = WriterState::kAppends, .progress = 3, .seconds = 600};
  const HangVerdict verdict = locate_hang(r.all, {.world_rank = 0, .writer = true, .seconds = 600});
  EXPECT_EQ(verdict.kind, HangKind::kStorage);
  EXPECT_EQ(named(verdict), std::vector{0});
  EXPECT_TRUE(has(verdict.headline, "its writer of metrics.jsonl and log.txt appends"));
}

TEST(HangLocator, a_writers_deadline_is_about_writers) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");  // the training is at work: rank 1 computes
  r[3].writer = {.state = WriterState::kWrites, .progress = 3, .step = 100, .seconds = 600};
  r[2].writer = {.state = WriterState::kWrites, .progress = 3, .step = 100, .seconds = 1};
  const HangVerdict verdict = locate_hang(r.all, {.world_rank = 3, .writer = true, .seconds = 600});
  EXPECT_EQ(verdict.kind, HangKind::kStorage);
  EXPECT_EQ(named(verdict), std::vector{3});
}

TEST(HangLocator, a_load_inside_a_call_on_files_is_storage) {
  Records r(1, 1, 2);
  r.idle(0), r.idle(1);
  r.joins(0, "job");
  r[1].host_state = HostState::kWorks;
  for (RankRecord& record : r.all) record.phase = RunPhase::kLoad;
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kHostBusy);
  r[1].stacks.push_back(
      {.thread = 7, .name = "main", .frames = {1, 2}, .symbols = {"__libc_pread64+0x4f", "read_all"}});
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kStorage);
  r[1].phase = RunPhase::kStep;
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kHostBusy);
}

}  // namespace
}  // namespace tri
