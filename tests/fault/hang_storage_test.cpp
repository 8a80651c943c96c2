// The locator on data readers and storage, on hand-written records.
#include <sys/syscall.h>

#include "io/base/file_writer.h"
#include "lib/fault/thread_stacks.h"
#include "tests/fault/hang_records.h"

namespace tri {
namespace {

using namespace hand_written;

class Feeds : public Records {
 public:
  // Rank 0 reads for all ranks, which have all taken batch 4.
  Feeds() : Records(1, 4, 1) {
    for (RankRecord& record : all) {
      idle(record.world_rank);
      record.host_state = HostState::kAwaitsData;
      record.loaders[0] = {.reader = 0, .wanted = 5};
    }
    all[0].loaders[0].reader_state = ReaderState::kReads;
    all[0].loaders[0].published = 4;
    all[0].loaders[0].seconds = kSilent;
  }
};

TEST(HangLocator, a_reader_that_does_not_read_is_reported) {
  Feeds r;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kDataReader);
  EXPECT_EQ(named(verdict), std::vector{0});
  EXPECT_EQ(verdict.num_waiting, 3);
  EXPECT_TRUE(has(verdict.headline, "reader of training tokens has made no progress after batch 4"));
  EXPECT_TRUE(has(verdict.headline, "batch 5 of its training tokens"));
}

TEST(HangLocator, a_reader_waits_for_its_slowest_consumer) {
  Feeds r;
  r[0].loaders[0].reader_state = ReaderState::kAwaitsConsumers;
  r[2].loaders[0].wanted = 2;
  r[2].host_state = HostState::kWorks;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kHostBusy);
  EXPECT_EQ(named(verdict), std::vector{2});
  EXPECT_EQ(verdict.num_waiting, 3);
}

TEST(HangLocator, a_rank_that_does_not_consume_tokens_is_reported) {
  Feeds r;
  r[0].loaders[0].published = 5;
  r[0].loaders[0].reader_state = ReaderState::kAwaitsConsumers;
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
  for (RankRecord& rank : r.all) rank.last_event_seconds = 0.1;  // steps continue
  r[0].writer = {.state = WriterState::kAppends, .progress = 3, .seconds = 600};
  const HangVerdict verdict = locate_hang(r.all, {.world_rank = 0, .writer = true, .seconds = 600});
  EXPECT_EQ(verdict.kind, HangKind::kStorage);
  EXPECT_EQ(named(verdict), std::vector{0});
  EXPECT_TRUE(has(verdict.headline, "its writer of metrics.jsonl appends"));
}

TEST(HangLocator, a_writers_deadline_is_about_writers) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");  // training continues: rank 1 computes
  r[3].writer = {.state = WriterState::kWrites, .progress = 3, .step = 100, .seconds = 600};
  r[2].writer = {.state = WriterState::kWrites, .progress = 3, .step = 100, .seconds = 1};
  const HangVerdict verdict = locate_hang(r.all, {.world_rank = 3, .writer = true, .seconds = 600});
  EXPECT_EQ(verdict.kind, HangKind::kStorage);
  EXPECT_EQ(named(verdict), std::vector{3});
}

// Rank 1 runs, and rank 0 waits for it.
class HostRuns : public Records {
 public:
  explicit HostRuns(RunPhase phase) : Records(1, 1, 2) {
    idle(0), idle(1);
    joins(0, "job");
    all[1].host_state = HostState::kWorks;
    for (RankRecord& record : all) record.phase = phase;
  }
  HangKind with(const StackRecord& stack) {
    all[1].stacks = {stack};
    return locate_hang(all, kDeadline).kind;
  }
};

constexpr RunPhase kPhases[] = {RunPhase::kSetup,  RunPhase::kLoad,       RunPhase::kStep,  RunPhase::kCheckpoint,
                                RunPhase::kSample, RunPhase::kEvaluation, RunPhase::kFinish};

StackRecord stack_of(std::string_view name, const char* innermost) {
  return {.thread = 7, .name = std::string(name), .frames = {1, 2}, .symbols = {innermost, "tri::write_all(int)+0x4"}};
}

TEST(HangLocator, a_call_on_files_of_the_thread_that_trains_is_storage_in_every_phase) {
  for (const RunPhase phase : kPhases) {
    HostRuns r(phase);
    EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kHostBusy) << enum_name(phase);
    for (const char* call :
         {"__libc_pread64+0x4f", "write+0x1f (libc.so.6)", "mkdir+0x7 (libc.so.6)", "fopen64+0x12", "opendir+0x3",
          "unlink+0x7", "fwrite+0x9", "fputs+0x9", "fsync+0x1f (libc.so.6)", "__GI___libc_write+0x13"})
      EXPECT_EQ(r.with(stack_of(kTrainingThread, call)), HangKind::kStorage) << enum_name(phase) << ", " << call;
    EXPECT_EQ(r.with(stack_of(kTrainingThread, "tri::spin()+0x4f")), HangKind::kHostBusy) << enum_name(phase);
  }
}

TEST(HangLocator, a_call_on_files_of_another_thread_counts_where_it_may_work_for_the_one_that_trains) {
  for (const RunPhase phase : kPhases) {
    HostRuns r(phase);
    const bool runs_plans = phase == RunPhase::kStep || phase == RunPhase::kEvaluation || phase == RunPhase::kSample;
    EXPECT_EQ(r.with(stack_of("trireme", "pread64+0x4f")), runs_plans ? HangKind::kHostBusy : HangKind::kStorage);
    EXPECT_EQ(r.with(stack_of(kFileWriterThread, "write+0x4f")), HangKind::kHostBusy) << enum_name(phase);
  }
}

// A thread that waits for an NFS server does not answer with its stack.
TEST(HangLocator, a_call_on_files_is_seen_in_the_words_of_the_kernel) {
  HostRuns r(RunPhase::kStep);
  const auto silent = [](const std::string& words) {
    return StackRecord{.thread = 7, .name = std::string(kTrainingThread), .frames = {}, .symbols = {words}};
  };
  EXPECT_EQ(r.with(silent(fmt::format("state D, in rpc_wait_bit_killable, system call {}", SYS_fsync))),
            HangKind::kStorage);
  EXPECT_EQ(r.with(silent("state D, in nfs_wait_on_request")), HangKind::kStorage);
  EXPECT_EQ(r.with(silent(fmt::format("state D, in nvidia_ioctl, system call {}", SYS_ioctl))), HangKind::kHostBusy);
  EXPECT_EQ(r.with(silent("state R, running")), HangKind::kHostBusy);
  EXPECT_EQ(r.with(silent("state S, in futex_wait_queue")), HangKind::kHostBusy);
}

// Ranks 0 to 3 are on node00, 4 to 7 on node01; all write checkpoint 100.
class Writers : public Records {
 public:
  Writers() : Records(1, 2, 4) {
    for (RankRecord& record : all) {
      record.last_event_seconds = 0.1;  // steps continue
      writes(record.world_rank, 600);
    }
  }
  void writes(int rank, double seconds) {
    (*this)[rank].writer = {.state = WriterState::kWrites, .progress = 3, .step = 100, .seconds = seconds};
  }
  void has_written(int rank) { (*this)[rank].writer = {.progress = 5, .step = 100, .seconds = 590}; }
  std::vector<std::string> suspects(int trigger) const {
    const HangVerdict verdict = locate_hang(all, {.world_rank = trigger, .writer = true, .seconds = 600});
    EXPECT_EQ(verdict.kind, HangKind::kStorage) << verdict.headline;
    return suspect_hosts(all, verdict);
  }
};

TEST(SuspectHosts, storage_that_all_nodes_wait_for_makes_none_suspect) {
  const Writers r;
  EXPECT_EQ(r.suspects(0), std::vector<std::string>());
  EXPECT_EQ(r.suspects(5), std::vector<std::string>());
}

TEST(SuspectHosts, a_node_that_alone_of_several_waits_for_storage_is_suspect) {
  Writers r;
  for (const int rank : {0, 1, 2, 3, 4, 6, 7}) r.has_written(rank);
  EXPECT_EQ(r.suspects(5), std::vector<std::string>{"node01"});
  r.writes(7, 500);  // ... with several of its ranks
  EXPECT_EQ(r.suspects(5), std::vector<std::string>{"node01"});
  for (const int rank : {0, 1, 2, 3}) r.writes(rank, 1);  // the others are working
  EXPECT_EQ(r.suspects(5), std::vector<std::string>{"node01"});
  r.writes(2, 400);  // one of them also waits
  EXPECT_EQ(r.suspects(5), std::vector<std::string>());
}

TEST(SuspectHosts, a_node_whose_storage_no_other_node_uses_is_not_suspect) {
  Writers r;
  for (RankRecord& record : r.all) record.writer = {};
  r.writes(5, 600);
  EXPECT_EQ(r.suspects(5), std::vector<std::string>());
  r[5].writer = {};
  r[0].writer = {.state = WriterState::kAppends, .progress = 3, .seconds = 600};  // only rank 0 writes lines
  EXPECT_EQ(r.suspects(0), std::vector<std::string>());
}

TEST(SuspectHosts, of_one_node_storage_makes_none_suspect) {
  Writers r;
  for (RankRecord& record : r.all) record.host = "node00";
  for (const int rank : {0, 1, 2, 3, 4, 6, 7}) r.has_written(rank);
  EXPECT_EQ(r.suspects(5), std::vector<std::string>());
}

TEST(SuspectHosts, a_call_on_files_in_a_step_makes_none_suspect) {
  Records r(1, 2, 4);
  for (RankRecord& record : r.all) r.idle(record.world_rank);
  for (int rank = 1; rank < 8; ++rank) r.joins(rank, "job");
  r[0].host_state = HostState::kWorks;
  r[0].stacks = {stack_of(kTrainingThread, "write+0x1f")};
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kStorage);
  EXPECT_EQ(suspect_hosts(r.all, verdict), std::vector<std::string>());
  r[0].stacks.clear();
  const HangVerdict busy = locate_hang(r.all, kDeadline);
  EXPECT_EQ(busy.kind, HangKind::kHostBusy);
  EXPECT_EQ(suspect_hosts(r.all, busy), std::vector<std::string>{"node00"});
}

TEST(SuspectHosts, a_reader_of_tokens_is_suspect_where_those_of_other_nodes_go_on) {
  Records r(1, 8, 1);
  for (RankRecord& record : r.all) {
    r.idle(record.world_rank);
    record.host_state = HostState::kAwaitsData;
    record.loaders[0] = {.reader = record.world_rank / 4 * 4, .wanted = 5};
  }
  const auto reads = [&](int rank, uint32_t published, ReaderState state, double seconds) {
    r[rank].loaders[0].reader_state = state;
    r[rank].loaders[0].published = published;
    r[rank].loaders[0].seconds = seconds;
  };
  const auto suspects = [&] {
    const HangVerdict verdict = locate_hang(r.all, kDeadline);
    EXPECT_EQ(verdict.kind, HangKind::kDataReader) << verdict.headline;
    return suspect_hosts(r.all, verdict);
  };
  reads(0, 4, ReaderState::kReads, kSilent);
  reads(4, 4, ReaderState::kReads, kSilent);
  EXPECT_EQ(suspects(), std::vector<std::string>());
  for (int rank = 4; rank < 8; ++rank) r.joins(rank, "job");  // they have their tokens and wait for the others
  reads(4, 7, ReaderState::kAwaitsConsumers, kSilent);
  EXPECT_EQ(suspects(), std::vector<std::string>{"node00"});
  for (RankRecord& record : r.all) record.host = "node00";
  EXPECT_EQ(suspects(), std::vector<std::string>());
}

}  // namespace
}  // namespace tri
