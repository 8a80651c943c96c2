// The locator's rules one by one, on hand-written records: processes, transfers, connections. Storage and data:
// hang_storage_test.cpp. Whole jobs: hang_locator_job_test.cpp.
#include "tests/fault/hang_records.h"

namespace tri {
namespace {

using namespace hand_written;

TEST(HangLocator, the_headline_names_the_suspect_its_state_and_the_waiting_ranks) {
  Records r(2, 2, 2);
  r.join_but(5, "tp");
  r.join_but(5, "world");
  for (const int rank : {0, 1, 2, 3, 4, 6, 7}) r.channel(rank, "tp").completed = rank == 4 ? kDone : kDone + 1;
  r[5].process_state = ProcessState::kStopped;
  r[5].gpu = "0000:18:00.0";
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.headline,
            "rank 5 [pp1 dp0 tp1] on node01 (GPU 0000:18:00.0) is stopped by a signal in forward of "
            "microbatch 3, chunk 1, step 5; 7 ranks wait for it; the first is rank 4 [pp1 dp0 tp0] (all-gather 11 on "
            "tp)");
  ASSERT_TRUE(verdict.first_wait);
  EXPECT_EQ(verdict.first_wait->text, "rank 4 waits for all-gather 11 on tp of rank 5, which is at 10");
}

TEST(HangLocator, of_those_that_wait_directly_the_one_that_waited_longest_is_first) {
  Records r(1, 1, 4);
  r.join_but(1, "world");
  r[3].last_event_seconds = kSilent + 1;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  ASSERT_TRUE(verdict.first_wait);
  EXPECT_EQ(verdict.first_wait->from, 3);
}

TEST(HangLocator, several_processes_that_stop_or_leave_are_all_named) {
  Records r(1, 2, 4);
  r.join_but(2, "world");
  r[2].process_state = r[6].process_state = ProcessState::kStopped;
  r[3].process_state = ProcessState::kGone;
  r.all.erase(r.all.begin() + 7);
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kProcessGone);
  EXPECT_EQ(named(verdict), (std::vector{7, 3, 2, 6})) << "rank 3 has joined, and no rank waits for it yet";
  EXPECT_TRUE(has(verdict.suspects[0].text, "rank 7 [pp0 dp1 tp3] is gone: it left no flight record"));
  EXPECT_TRUE(has(verdict.headline, "also ranks 2, 3, 6"));
}

TEST(HangLocator, a_stopped_rank_that_has_joined_differs_from_a_stuck_transfer) {
  Records r(1, 1, 2);
  for (const int rank : {0, 1}) r.joins(rank, "tp");
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kTransfer);
  r[1].process_state = ProcessState::kStopped;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kProcessStopped);
  EXPECT_EQ(verdict.num_waiting, 1);
}

TEST(HangLocator, a_job_that_is_suspended_as_a_whole_is_unattributed) {
  Records r(1, 1, 4);
  r.join_but(2, "tp");
  for (RankRecord& record : r.all) record.process_state = ProcessState::kStopped;
  const HangVerdict verdict = locate_hang(r.all, kRequested);
  EXPECT_EQ(verdict.kind, HangKind::kProcessStopped);
  EXPECT_TRUE(verdict.suspects.empty());
  EXPECT_TRUE(has(verdict.headline, "suspended"));
}

TEST(HangLocator, if_all_processes_are_gone_the_counters_decide) {
  Records r(1, 1, 4);
  r.join_but(2, "tp");
  for (RankRecord& record : r.all) record.process_state = ProcessState::kGone;
  const HangVerdict verdict = locate_hang(r.all, kRequested);
  EXPECT_EQ(verdict.kind, HangKind::kDeviceBusy);
  EXPECT_EQ(named(verdict), std::vector{2});
}

TEST(HangLocator, the_earliest_failure_that_is_no_consequence_is_the_first_cause) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");
  r[0].failure = FailureRecord{.code = 4, .consequence = false, .realtime = 2'000, .text = "out of memory"};
  r[1].failure = FailureRecord{.code = 4, .consequence = true, .realtime = 1'000, .text = "rank 3 is gone"};
  r[1].process_state = ProcessState::kGone;
  r[3].failure = FailureRecord{.code = 4, .consequence = false, .realtime = 1'500, .text = "ECC error"};
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kFailed);
  EXPECT_EQ(named(verdict), std::vector{3});
  EXPECT_TRUE(has(verdict.headline, "failed in forward of microbatch 3, chunk 1, step 5: ECC error"));
  const std::string report = hang_report(r.all, kDeadline, verdict);
  EXPECT_LT(report.find("rank 3 is gone"), report.find("out of memory")) << "in the order of time";
}

TEST(HangLocator, a_failed_transfer_is_the_echo_of_a_process_that_is_gone) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");
  r[0].failure = FailureRecord{.code = 5, .consequence = false, .realtime = 1'000, .text = "NCCL: remote error"};
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{0});
  r[1].process_state = ProcessState::kGone;
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{1});
}

TEST(HangLocator, a_receive_posted_ahead_is_no_wait) {
  Records r(2, 1, 1);
  const int edge = r.connect(0, 1), back = r.connect(1, 0, "pp backward");
  r.joins(1, "pp forward");   // for a later action: rank 1 computes
  r.joins(0, "pp backward");  // and for this one
  r[0].action_running = 16;
  r[0].action->waits = {{back, kDone + 1}};
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kDeviceBusy);
  EXPECT_EQ(named(verdict), std::vector{1});
  EXPECT_EQ(verdict.num_waiting, 1);

  r[1].action_running = 16;  // rank 1 now needs data that rank 0 has not sent, so each waits for the other
  r[1].action->waits = {{edge, kDone + 1}};
  const HangVerdict circle = locate_hang(r.all, kDeadline);
  EXPECT_EQ(circle.kind, HangKind::kCycle);
  ASSERT_EQ(circle.cycle.size(), 2u);
  EXPECT_TRUE(has(circle.headline, "rank 0 waits for transfer 11 on pp backward of rank 1, which is at 10"));
  EXPECT_TRUE(has(circle.headline, "rank 1 waits for transfer 11 on pp forward of rank 0, which is at 10"));
}

TEST(HangLocator, an_output_that_cannot_leave_is_a_wait_for_the_receiver) {
  Records r(2, 1, 1);
  const int edge = r.connect(0, 1);
  r.joins(0, "pp forward");
  r[0].action_running = 16;
  r[0].action->waits = {{edge, kDone + 1}};
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{1});
  r.joins(1, "pp forward");  // the receiver is ready and waits, so the copy is missing
  r[1].action_running = 16;
  r[1].action->waits = {{edge, kDone + 1}};
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kTransfer);
  EXPECT_EQ(named(verdict), (std::vector{0, 1}));
}

TEST(HangLocator, copies_wait_for_ready_members_first_and_then_for_their_blocks) {
  Records r(1, 1, 3);
  for (RankRecord& record : r.all) record.channels[0].kind = ChannelKind::kCopies;
  for (const int rank : {0, 1}) r.joins(rank, "tp");
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{2});
  r.joins(2, "tp");
  for (const int rank : {0, 2}) r.channel(rank, "tp").sent = kDone + 1;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(named(verdict), std::vector{1});
  EXPECT_EQ(verdict.kind, HangKind::kTransfer) << "of a gather the rows lie there, so it is the copies that hang";
  for (const int rank : {0, 1, 2}) r.channel(rank, "tp").operation = ChannelOperation::kReduceScatter;
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kDeviceBusy) << "of a reduce, compute makes the blocks";
}

// Both ranks have reached a reduce by copies, and the first has sent.
Records in_a_reduce_by_copies() {
  Records r(1, 1, 2);
  for (const int rank : {0, 1}) {
    r.channel(rank, "tp").kind = ChannelKind::kCopies;
    r.joins(rank, "tp");
    r.channel(rank, "tp").operation = ChannelOperation::kReduceScatter;
    r.idle(rank);
  }
  r.channel(0, "tp").sent = kDone + 1;
  r[1].host_state = HostState::kWorks;
  r.channel(1, "tp").whole = kDone;
  return r;
}

TEST(HangLocator, a_host_that_has_not_enqueued_its_blocks_is_no_stuck_transfer) {
  Records r = in_a_reduce_by_copies();
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kHostBusy);
  EXPECT_EQ(named(verdict), std::vector{1});
  EXPECT_EQ(verdict.num_waiting, 1);
  r[1].host_state = HostState::kAwaitsDevice;  // the missing data is in flight in its streams
  r[1].actions_enqueued += 1;
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kDeviceBusy);
}

TEST(HangLocator, a_host_that_has_not_enqueued_the_wait_for_blocks_is_no_stuck_transfer) {
  Records r = in_a_reduce_by_copies();
  r.channel(1, "tp").sent = kDone + 1;
  r.channel(0, "tp").completed = kDone + 1;  // everything has arrived
  r.joins(0, "world");
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kHostBusy);
  EXPECT_EQ(named(verdict), std::vector{1});
  r.channel(1, "tp").whole = kDone + 1;
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kTransfer);
}

TEST(HangLocator, gradients_reduced_during_a_backward_pass_do_not_hide_a_kernel) {
  Records r(1, 2, 1);
  r.join_but(1, "dp");
  r[0].action->kind = ComputeKind::kBackward;
  r.join_but(0, "world");  // rank 1 waits for rank 0, which has a pending reduce that rank 1 has not reached
  r.channel(0, "world").enqueued = kDone + 1;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kDeviceBusy);
  EXPECT_EQ(named(verdict), std::vector{0});
}

TEST(HangLocator, a_device_that_does_not_send_experts_rows_is_told_apart) {
  for (const ComputeKind kind : {ComputeKind::kForward, ComputeKind::kBackward}) {
    Records r(1, 2, 1);
    for (RankRecord& record : r.all) record.action->kind = kind;
    for (const int rank : {0, 1}) {
      r.add(rank, "ep rows", {0, 1, 2}, rank);
      r.add(rank, "ep copies", {0, 1, 2}, rank, ChannelKind::kCopies);
      r.joins(rank, "ep copies");
    }
    r.channel(0, "ep copies").sent = kDone + 1;
    r.channel(1, "ep copies").joined = kDone;
    const HangVerdict verdict = locate_hang(r.all, kDeadline);
    EXPECT_EQ(verdict.kind, HangKind::kDeviceBusy);
    EXPECT_EQ(named(verdict), std::vector{1});
    EXPECT_TRUE(has(verdict.headline, "the first is rank 0 [pp0 dp0 tp0] (all-gather 11 on ep copies)"));
  }
}

TEST(HangLocator, a_device_that_does_not_take_rows_which_have_arrived_is_told_apart) {
  for (const char* const name : {"ep rows", "ep copies"}) {
    Records r(1, 2, 1);
    for (const int rank : {0, 1}) {
      r.add(rank, "ep rows", {0, 1, 2}, rank);
      r.add(rank, "ep copies", {0, 1, 2}, rank, ChannelKind::kCopies);
      r.joins(rank, name);
      r.channel(rank, name).sent = kDone + 1;
    }
    r.channel(0, name).completed = kDone + 1;  // rank 1 still computes what it may before it takes its rows
    r.joins(0, "world");
    const HangVerdict verdict = locate_hang(r.all, kDeadline);
    EXPECT_EQ(verdict.kind, HangKind::kDeviceBusy) << name;
    EXPECT_EQ(named(verdict), std::vector{1}) << name;
  }
}

TEST(HangLocator, different_operations_of_one_number_are_the_programs_fault) {
  Records r(1, 1, 2);
  for (const int rank : {0, 1}) r.joins(rank, "tp");
  r.channel(1, "tp").operation = ChannelOperation::kReduceScatter;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kCycle);
  EXPECT_TRUE(has(verdict.headline, "is all-gather for rank 0 and reduce-scatter for rank 1"));
}

TEST(HangLocator, numbers_are_compared_as_they_wrap) {
  Records r(1, 1, 3);
  for (RankRecord& record : r.all) {
    ChannelRecord& c = record.channels[0];
    c.completed = c.enqueued = c.joined = c.sent = UINT32_MAX;
  }
  for (RankRecord& record : r.all) record.channels[0].enqueued = 0;
  for (const int rank : {0, 2}) r.channel(rank, "tp").joined = r.channel(rank, "tp").sent = 0;
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{1});
}

TEST(HangLocator, a_host_that_has_not_enqueued_differs_from_a_device_that_has_not_started) {
  Records r(1, 1, 2);
  r.joins(0, "tp");
  r[1].host_state = HostState::kWorks;
  r.idle(1);
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kHostBusy);
  r.channel(1, "tp").enqueued = kDone + 1;
  r[1].actions_enqueued += 1;
  EXPECT_EQ(locate_hang(r.all, kDeadline).kind, HangKind::kDeviceBusy);
}

TEST(HangLocator, a_rank_outside_the_jobs_call_is_awaited) {
  Records r(2, 1, 2);
  for (const int rank : {0, 1, 3}) {
    r.idle(rank);
    r.joins(rank, "job");
  }
  r[2].host_state = HostState::kWorks;
  r.idle(2);
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kHostBusy);
  EXPECT_EQ(named(verdict), std::vector{2});
  EXPECT_EQ(verdict.num_waiting, 3);
}

TEST(HangLocator, a_connection_waits_for_members_that_have_not_come) {
  Records r(1, 1, 4);
  for (RankRecord& record : r.all) {
    r.idle(record.world_rank);
    record.phase = RunPhase::kSetup;
    record.host_state = HostState::kConnects;
    record.connection = 77;
    record.connection_name = "group tp";
    record.connection_set = {0, 1, 4};
  }
  const HangVerdict all_inside = locate_hang(r.all, kDeadline);
  EXPECT_EQ(all_inside.kind, HangKind::kTransfer) << "all are in it, and it does not end";
  EXPECT_EQ(all_inside.suspects.size(), 4u);

  r[1].connection = 0;
  r[1].host_state = HostState::kWorks;
  r[2].connection = 0;  // it has left the connection
  r[2].connections_done = {77};
  r[2].host_state = HostState::kWorks;
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(verdict.kind, HangKind::kHostBusy);
  EXPECT_EQ(named(verdict), std::vector{1});
  EXPECT_EQ(verdict.num_waiting, 2);
  EXPECT_TRUE(has(verdict.headline, "(connection group tp)"));

  // A rank that has left is never blamed for it.
  r[1].host_state = HostState::kConnects;
  r[1].connection = 77;
  const HangVerdict stuck = locate_hang(r.all, kDeadline);
  EXPECT_EQ(stuck.kind, HangKind::kTransfer);
  EXPECT_EQ(named(stuck), (std::vector{0, 1, 3}));
}

TEST(HangLocator, a_connection_without_named_members_may_be_of_all_ranks) {
  Records r(1, 1, 200);
  for (RankRecord& record : r.all) {
    r.idle(record.world_rank);
    record.phase = RunPhase::kSetup;
    record.host_state = HostState::kConnects;
    record.connection = 77;
  }
  r[150].connection = 0;
  r[150].host_state = HostState::kWorks;
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{150});
  for (RankRecord& record : r.all) record.connection_set = {0, 1, 2'000'000'000};  // damaged
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{150});
}

TEST(HangLocator, of_hosts_without_waiters_the_odd_one_is_named) {
  Records r(1, 1, 8);
  for (RankRecord& record : r.all) {
    r.idle(record.world_rank);
    record.phase = RunPhase::kSetup;
    record.host_state = HostState::kWorks;
    record.stacks.push_back({.thread = 1, .name = "main", .frames = {1}, .symbols = {"MPI_Barrier"}});
  }
  r[6].stacks.front().symbols = {"parse_config"};
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_EQ(named(verdict), std::vector{6});
}

TEST(HangLocator, a_rank_that_goes_on_and_that_no_rank_waits_for_is_no_suspect) {
  Records r(1, 2, 2);
  r.joins(0, "tp");  // rank 1 holds up rank 0; the other pipeline works
  r[2].last_event_seconds = r[3].last_event_seconds = 0.01;
  EXPECT_EQ(named(locate_hang(r.all, kDeadline)), std::vector{1});
}

TEST(HangLocator, a_requested_dump_of_a_healthy_job_has_no_hang) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");
  for (RankRecord& record : r.all) record.last_event_seconds = 0.2;
  const HangVerdict verdict = locate_hang(r.all, kRequested);
  EXPECT_EQ(verdict.kind, HangKind::kUnknown);
  EXPECT_TRUE(verdict.suspects.empty());
  EXPECT_EQ(verdict.headline, "no hang was found: all 4 ranks make progress, the last one 0.2 s ago");
  for (RankRecord& record : r.all) record.last_event_seconds = kSilent;
  EXPECT_EQ(named(locate_hang(r.all, kRequested)), std::vector{1}) << "after a minute it is one";
}

TEST(HangLocator, damaged_records_do_no_harm) {
  Records r(1, 1, 4);
  r.join_but(1, "tp");
  r[2].channels[1].members = {2'000'000'000, 2'000'000'000, 2'000'000'000};
  r[3].channels[0].index = 99;
  r[0].action->waits = {{.channel = 1000, .sequence = 1}, {.channel = -1, .sequence = 1}};
  r[0].action_running = 3;
  r[3].loaders[0].reader = 12345;
  r[3].world_size = 1 << 30;
  RankRecord stray;
  stray.world_rank = -5;
  r.all.push_back(stray);
  const HangVerdict verdict = locate_hang(r.all, kDeadline);
  EXPECT_FALSE(verdict.headline.empty());
  EXPECT_FALSE(hang_report(r.all, kDeadline, verdict).empty());
  EXPECT_EQ(locate_hang({}, kRequested).headline, "the dump holds no flight records");
  EXPECT_FALSE(hang_report({}, kRequested, {}).empty());
}

}  // namespace
}  // namespace tri
