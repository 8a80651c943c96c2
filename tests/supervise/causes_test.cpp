// From the facts about an attempt's end to its first cause, and GPUs that report their own faults.
#include "lib/supervise/causes.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

constexpr double kNow = 10000;

RunEvent failure(int code, int rank = 3, bool consequence = false) {
  return {.kind = RunEventKind::kFailure,
          .world_rank = rank,
          .host = "host1",
          .text = "it failed",
          .fields = {{"code", int64_t{code}}, {"consequence", consequence}}};
}
AttemptCause finding(CauseKind kind, const std::string& node, double time = kNow) {
  return {.kind = kind, .node = node, .text = std::string(enum_name(kind)), .time = time};
}
AttemptCause cause(const EndFacts& facts) { return cause_of(facts, kNow); }

TEST(Causes, statuses_of_the_launcher_where_nothing_else_is_known) {
  struct Case {
    int status;
    CauseKind kind;
  };
  for (const Case& c :
       {Case{0, CauseKind::kFinished}, Case{2, CauseKind::kUsage}, Case{3, CauseKind::kFile},
        Case{4, CauseKind::kDevice}, Case{5, CauseKind::kCommunication}, Case{6, CauseKind::kHangOfProgram},
        Case{7, CauseKind::kNotFinite}, Case{75, CauseKind::kDrainedItself}, Case{137, CauseKind::kDeath},
        Case{99, CauseKind::kUnknown}}) {
    const AttemptCause found = cause({.status = c.status, .ranks_seen = true});
    EXPECT_EQ(found.kind, c.kind) << c.status;
    EXPECT_EQ(found.status, c.status);
    EXPECT_EQ(found.node, "") << "no node is named";
  }
  EXPECT_EQ(cause({.status = 99}).kind, CauseKind::kNotStarted);
  EXPECT_EQ(cause({.status = 75, .stop_requested = true}).kind, CauseKind::kDrained);
  EXPECT_EQ(cause({.stop_requested = true}).kind, CauseKind::kDrained) << "killed, since it did not leave";
}

TEST(Causes, the_event_logs_first_failure_names_kind_rank_and_node) {
  struct Case {
    int code;
    CauseKind kind;
    bool names;
  };
  for (const Case& c : {Case{4, CauseKind::kDevice, true}, Case{7, CauseKind::kNotFinite, true},
                        Case{137, CauseKind::kDeath, true}, Case{5, CauseKind::kCommunication, false},
                        Case{3, CauseKind::kFile, true}, Case{2, CauseKind::kUsage, false}}) {
    const AttemptCause found =
        cause({.status = 1, .ranks_seen = true, .event = failure(c.code), .event_node = "node1"});
    EXPECT_EQ(found.kind, c.kind) << c.code;
    EXPECT_EQ(found.node, c.names ? "node1" : "") << c.code;
    EXPECT_EQ(found.world_rank, 3);
  }
}

TEST(Causes, a_death_names_the_launcher_s_signal_unless_it_is_known_already) {
  EndFacts facts{
      .status = 137, .ranks_seen = true, .first_gone = AttemptCause{.kind = CauseKind::kDeath, .text = "gone"}};
  EXPECT_EQ(cause(facts).text, "gone; the launcher reports signal 9 (SIGKILL)");
  facts.first_gone->text = "it was killed by signal 11 (SIGSEGV)";
  EXPECT_EQ(cause(facts).text, "it was killed by signal 11 (SIGSEGV)");
  facts.first_gone->text = "gone";
  facts.status = 1;
  EXPECT_EQ(cause(facts).text, "gone");
}

// Flight recorders are looked at once a second, in which many steps may pass.
TEST(Causes, the_step_is_that_of_the_failure_where_it_says_so) {
  EndFacts facts{.status = 7, .ranks_seen = true, .event = failure(7), .event_node = "node1"};
  EXPECT_EQ(cause(facts).step, -1);
  facts.event->fields["step"] = int64_t{1234};
  EXPECT_EQ(cause(facts).step, 1234);
  EXPECT_EQ(cause(facts).node, "node1");
  facts.event->world_rank = -1;  // world rank 0 reports it, about no rank
  EXPECT_EQ(cause(facts).kind, CauseKind::kNotFinite);
  EXPECT_EQ(cause(facts).node, "");
  EXPECT_EQ(cause(facts).step, 1234);
}

TEST(Causes, a_neighbour_that_speaks_for_a_rank_means_its_death) {
  RunEvent event = failure(5, 2);
  event.fields["seen_by"] = int64_t{0};
  const AttemptCause found = cause({.status = 5, .ranks_seen = true, .event = event, .event_node = "node2"});
  EXPECT_EQ(found.kind, CauseKind::kDeath);
  EXPECT_EQ(found.node, "node2");
  EXPECT_EQ(found.world_rank, 2);
}

// The driver ended it because ranks were gone and the launcher had not reported that.
TEST(Causes, of_ranks_that_died_unnoticed_the_event_log_or_the_first_sight_names_the_first) {
  EndFacts facts{.ranks_seen = true, .died_unnoticed = true};
  facts.first_gone = AttemptCause{.kind = CauseKind::kDeath, .node = "node0", .world_rank = 0};
  EXPECT_EQ(cause(facts).node, "node0");
  facts.event = failure(5, 2);  // a peer could not be reached: the rank does not know whose fault that is
  facts.event_node = "node1";
  EXPECT_EQ(cause(facts).node, "node0");
  facts.event->fields["seen_by"] = int64_t{1};  // a neighbour has seen rank 2 die
  EXPECT_EQ(cause(facts).kind, CauseKind::kDeath);
  EXPECT_EQ(cause(facts).node, "node1");
  EXPECT_EQ(cause(facts).world_rank, 2);
}

TEST(Causes, a_consequence_gives_way_to_the_rank_that_was_seen_gone_first) {
  EndFacts facts{.status = 5, .ranks_seen = true, .event = failure(5, 0, true), .event_node = "node0"};
  facts.first_gone = AttemptCause{.kind = CauseKind::kDeath, .node = "node3", .world_rank = 7};
  facts.first_gone->step = 31;
  EXPECT_EQ(cause(facts).node, "node3");
  EXPECT_EQ(cause(facts).world_rank, 7);
  EXPECT_EQ(cause(facts).step, 31) << "its flight recorder outlives it";
  facts.event = failure(4, 0);
  EXPECT_EQ(cause(facts).node, "node0") << "an independent failure is not a consequence";
}

TEST(Causes, a_hang_is_its_sinks_or_unattributed) {
  RunEvent event = failure(6);
  event.kind = RunEventKind::kHang;
  EndFacts facts{.status = 6, .ranks_seen = true, .event = event, .event_node = "node1"};
  EXPECT_EQ(cause(facts).kind, CauseKind::kHangOfProgram);
  EXPECT_EQ(cause(facts).node, "");
  facts.suspects = {"node2", "node1"};
  EXPECT_EQ(cause(facts).kind, CauseKind::kHang);
  EXPECT_EQ(cause(facts).node, "node2");
}

TEST(Causes, the_first_finding_wins_over_the_failures_that_follow_it) {
  EndFacts facts{.status = 4, .ranks_seen = true, .event = failure(4), .event_node = "node1"};
  facts.findings = {finding(CauseKind::kGpuFault, "node2"), finding(CauseKind::kGpuSick, "node3")};
  EXPECT_EQ(cause(facts).node, "node2");
  EXPECT_EQ(cause(facts).kind, CauseKind::kGpuFault);
  facts.findings.push_back(finding(CauseKind::kNodeLost, "node4"));
  EXPECT_EQ(cause(facts).node, "node4") << "a node that is gone explains whatever else is seen";
}

TEST(Causes, what_was_found_long_before_has_not_ended_the_attempt) {
  EndFacts facts{.status = 4, .ranks_seen = true, .event = failure(4), .event_node = "node1"};
  facts.findings = {finding(CauseKind::kGpuFault, "node2", kNow - 301)};
  EXPECT_EQ(cause(facts).node, "node1");
  facts.findings.front().time = kNow - 299;
  EXPECT_EQ(cause(facts).node, "node2");
}

TEST(Causes, a_replacement_is_the_cause_whatever_the_ranks_say_when_they_leave) {
  EndFacts facts{.status = 75, .ranks_seen = true, .replacement = finding(CauseKind::kStraggler, "node2", kNow - 400)};
  EXPECT_EQ(cause(facts).kind, CauseKind::kStraggler);
  facts.status = 5;
  facts.event = failure(5);
  EXPECT_EQ(cause(facts).kind, CauseKind::kStraggler);
  facts.findings = {finding(CauseKind::kNodeLost, "node3")};
  EXPECT_EQ(cause(facts).kind, CauseKind::kNodeLost);
  facts.status = 0;
  EXPECT_EQ(cause(facts).kind, CauseKind::kFinished);
}

TEST(Causes, trouble_of_links_explains_failures_that_name_no_other_node) {
  for (const CauseKind kind : {CauseKind::kGpuSuspect, CauseKind::kPortErrors}) {
    EndFacts facts{.status = 5, .ranks_seen = true, .event = failure(5), .event_node = "node1"};
    facts.findings = {finding(kind, "node2")};
    EXPECT_EQ(cause(facts).kind, kind);
    EXPECT_EQ(cause(facts).node, "node2");
    facts.event = failure(4);
    EXPECT_EQ(cause(facts).kind, CauseKind::kDevice) << "node1 has failed by itself";
    facts.event_node = "node2";
    EXPECT_EQ(cause(facts).kind, kind);
    facts.event = failure(7);
    EXPECT_EQ(cause(facts).kind, CauseKind::kNotFinite);
    facts.event = failure(5);
    facts.findings.front().time = kNow - 301;
    EXPECT_EQ(cause(facts).kind, CauseKind::kCommunication);
  }
}

// They are attached to one switch.
TEST(Causes, errors_of_ports_of_several_nodes_name_none) {
  EndFacts facts{.status = 5, .ranks_seen = true, .event = failure(5), .event_node = "node1"};
  facts.findings = {finding(CauseKind::kPortErrors, "node2"), finding(CauseKind::kPortErrors, "node3")};
  EXPECT_EQ(cause(facts).kind, CauseKind::kPortErrors);
  EXPECT_EQ(cause(facts).node, "");
  EXPECT_EQ(cause(facts).status, 5);
  facts.findings[1].time = kNow - 301;
  EXPECT_EQ(cause(facts).node, "node2") << "the other's are of another time";
  facts.findings[1] = finding(CauseKind::kPortErrors, "node2");
  EXPECT_EQ(cause(facts).node, "node2") << "two of one node";
  facts.findings[1] = finding(CauseKind::kPortErrors, "node3");
  facts.event = failure(4);
  facts.event_node = "node2";
  EXPECT_EQ(cause(facts).kind, CauseKind::kDevice) << "which is node2's own";
  EXPECT_EQ(cause(facts).node, "node2");
  facts.event = failure(5);
  facts.findings.push_back(finding(CauseKind::kGpuSuspect, "node1"));
  EXPECT_EQ(cause(facts).kind, CauseKind::kGpuSuspect);
  EXPECT_EQ(cause(facts).node, "node1");
}

std::optional<CauseKind> kind_of_xid(int xid) {
  const auto found = gpu_finding("node1", {.pci = "a"}, {.pci = "a", .xids = {xid}, .num_xids = 1});
  return found ? std::optional(found->kind) : std::nullopt;
}

// From NVIDIA's catalogue, as summarised in FAULTS.
TEST(GpuFindings, xids_by_their_kind) {
  for (const int xid : {46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 158})
    EXPECT_EQ(kind_of_xid(xid), CauseKind::kGpuSick) << xid;
  for (const int xid : {8, 13, 32, 94}) EXPECT_EQ(kind_of_xid(xid), CauseKind::kGpuFault) << xid;
  for (int xid = 144; xid <= 150; ++xid) EXPECT_EQ(kind_of_xid(xid), CauseKind::kGpuSuspect) << xid;
  for (const int xid : {1, 31, 43, 45, 63, 92, 154, 999}) EXPECT_EQ(kind_of_xid(xid), std::nullopt) << xid;
}

TEST(GpuFindings, only_new_findings_count_and_the_worst_is_reported) {
  const GpuSight before{.pci = "a", .xids = {79}, .num_xids = 1};
  EXPECT_FALSE(gpu_finding("node1", before, before));
  const auto found = gpu_finding("node1", before, {.pci = "a", .xids = {79, 13, 74}, .num_xids = 3});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, CauseKind::kGpuSick);
  EXPECT_EQ(found->text, "GPU a on node1: XID 74");
  EXPECT_EQ(found->node, "node1");
  // The list is full: the newest are at its end.
  GpuSight full{.pci = "a", .xids = std::vector<int>(16, 43), .num_xids = 20};
  GpuSight more = full;
  more.xids.back() = 79, more.num_xids = 21;
  EXPECT_TRUE(gpu_finding("node1", full, more));
  EXPECT_FALSE(gpu_finding("node1", more, more));
  // A restarted agent begins to count again.
  EXPECT_TRUE(gpu_finding("node1", more, {.pci = "a", .xids = {79}, .num_xids = 1}));
}

TEST(GpuFindings, states_and_counters) {
  const GpuSight healthy{.pci = "a", .ecc_errors = 3, .recovery_action = -1, .nvlinks_up = 18, .nvlink_recoveries = 2};
  const auto changed = [&](auto change) {
    GpuSight now = healthy;
    change(now);
    const auto found = gpu_finding("node1", healthy, now);
    return found ? std::optional(found->kind) : std::nullopt;
  };
  EXPECT_EQ(changed([](GpuSight&) {}), std::nullopt);
  EXPECT_EQ(changed([](GpuSight& g) { g.recovery_action = 0; }), std::nullopt);
  EXPECT_EQ(changed([](GpuSight& g) { g.slowed = true; }), std::nullopt);
  EXPECT_EQ(changed([](GpuSight& g) { g.nvlink_errors = 1000; }), std::nullopt) << "sent again, and well";
  for (const int action : {1, 2, 3, 4, 9})
    EXPECT_EQ(changed([&](GpuSight& g) { g.recovery_action = action; }), CauseKind::kGpuSick) << action;
  EXPECT_EQ(changed([](GpuSight& g) { g.lost = true; }), CauseKind::kGpuSick);
  EXPECT_EQ(changed([](GpuSight& g) { g.remap_failed = true; }), CauseKind::kGpuSick);
  EXPECT_EQ(changed([](GpuSight& g) { g.ecc_errors = 4; }), CauseKind::kGpuFault);
  EXPECT_EQ(changed([](GpuSight& g) { g.nvlinks_up = 17; }), CauseKind::kGpuSuspect);
  EXPECT_EQ(changed([](GpuSight& g) { g.nvlink_recoveries = 3; }), CauseKind::kGpuSuspect);
}

}  // namespace
}  // namespace tri
