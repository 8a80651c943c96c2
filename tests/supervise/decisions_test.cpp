// Every row of the table, on histories made for it; and the effect of the numbers of attempts and of nodes.
#include "lib/supervise/decisions.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

constexpr double kHour = 3600;

// Returns an attempt that made a newer checkpoint, unless `stands` says otherwise.
PastAttempt ended(CauseKind kind, const std::string& node, double time, int64_t step = 100, int rank = 3) {
  return {.began = time - 60,
          .ended = time,
          .from_step = step - 10,
          .checkpoint = step,
          .step = step,
          .cause = {.kind = kind, .node = node, .world_rank = rank, .status = 9, .step = step}};
}

Situation after(const std::vector<PastAttempt>& attempts, std::optional<Diagnosis> diagnosis = std::nullopt) {
  return {.attempts = attempts, .diagnosis = diagnosis, .nodes_needed = 2, .nodes_usable = 4};
}

PastAttempt without_progress(CauseKind kind, double time) {
  PastAttempt attempt = ended(kind, "", time);
  attempt.checkpoint = attempt.from_step;
  return attempt;
}

TEST(Decisions, ends_that_need_no_node) {
  struct Case {
    CauseKind kind;
    Response action;
    int status;
  };
  for (const Case& c :
       {Case{CauseKind::kFinished, Response::kDone, 0}, Case{CauseKind::kDrained, Response::kLeave, 75},
        Case{CauseKind::kDrainedItself, Response::kLeave, 75}, Case{CauseKind::kUsage, Response::kStop, 9},
        Case{CauseKind::kFile, Response::kStop, 9}, Case{CauseKind::kCommunication, Response::kRetry, 0},
        Case{CauseKind::kHangOfProgram, Response::kRetry, 0}, Case{CauseKind::kNotStarted, Response::kRetry, 0},
        Case{CauseKind::kUnknown, Response::kRetry, 0}}) {
    const std::vector<PastAttempt> past{ended(c.kind, "", kHour)};
    const Decision decision = decide(after(past));
    EXPECT_EQ(decision.action, c.action) << enum_name(c.kind);
    EXPECT_EQ(decision.status, c.status) << enum_name(c.kind);
    EXPECT_EQ(decision.node, "") << enum_name(c.kind);
  }
}

TEST(Decisions, faults_that_are_surely_the_nodes_exclude_it_at_once) {
  for (const CauseKind kind :
       {CauseKind::kNodeLost, CauseKind::kGpuSick, CauseKind::kPortFlaps, CauseKind::kUnkillable}) {
    const std::vector<PastAttempt> past{ended(kind, "node1", kHour)}, unattributed{ended(kind, "", kHour)};
    EXPECT_EQ(decide(after(past)).action, Response::kExclude) << enum_name(kind);
    EXPECT_EQ(decide(after(past)).node, "node1");
    EXPECT_EQ(decide(after(unattributed)).action, Response::kRetry) << enum_name(kind);
  }
}

TEST(Decisions, a_death_is_retried_then_the_doctor_looks_then_the_node_goes) {
  std::vector<PastAttempt> past{ended(CauseKind::kDeath, "node1", kHour, 100)};
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
  past.push_back(ended(CauseKind::kGpuFault, "node1", 2 * kHour, 200));
  EXPECT_EQ(decide(after(past)).action, Response::kDoctor);
  EXPECT_EQ(decide(after(past, Diagnosis::kHealthy)).action, Response::kRetry);
  for (const Diagnosis diagnosis : {Diagnosis::kSuspect, Diagnosis::kBad, Diagnosis::kUnknown})
    EXPECT_EQ(decide(after(past, diagnosis)).action, Response::kExclude);
  past.push_back(ended(CauseKind::kDeath, "node1", 3 * kHour, 300));
  EXPECT_EQ(decide(after(past)).action, Response::kExclude);
}

TEST(Decisions, faults_of_other_nodes_and_of_other_days_do_not_count) {
  const std::vector<PastAttempt> elsewhere{ended(CauseKind::kDeath, "node2", kHour, 100, 7),
                                           ended(CauseKind::kDeath, "node1", 2 * kHour, 200)};
  EXPECT_EQ(decide(after(elsewhere)).action, Response::kRetry);
  const std::vector<PastAttempt> long_ago{ended(CauseKind::kDeath, "node1", kHour, 100),
                                          ended(CauseKind::kDeath, "node1", 26 * kHour, 200)};
  EXPECT_EQ(decide(after(long_ago)).action, Response::kRetry);
}

TEST(Decisions, an_end_that_follows_the_rank_to_another_node_blames_none) {
  const std::vector<PastAttempt> past{ended(CauseKind::kDeath, "node2", kHour, 100),
                                      ended(CauseKind::kDeath, "node1", 2 * kHour, 100),
                                      ended(CauseKind::kDeath, "node1", 3 * kHour, 100)};
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
}

TEST(Decisions, a_hang_calls_the_doctor_and_the_second_excludes) {
  std::vector<PastAttempt> past{ended(CauseKind::kHang, "node1", kHour)};
  EXPECT_EQ(decide(after(past)).action, Response::kDoctor);
  EXPECT_EQ(decide(after(past, Diagnosis::kBad)).action, Response::kExclude);
  for (const Diagnosis diagnosis : {Diagnosis::kHealthy, Diagnosis::kSuspect, Diagnosis::kUnknown})
    EXPECT_EQ(decide(after(past, diagnosis)).action, Response::kRetry);
  past.push_back(ended(CauseKind::kHang, "node1", 2 * kHour));
  EXPECT_EQ(decide(after(past)).action, Response::kExclude);
}

TEST(Decisions, hangs_of_other_nodes_and_of_other_days_do_not_count) {
  const std::vector<PastAttempt> past{ended(CauseKind::kHang, "node2", kHour),
                                      ended(CauseKind::kHang, "node1", 2 * kHour),
                                      ended(CauseKind::kHang, "node1", 27 * kHour)};
  EXPECT_EQ(decide(after(past)).action, Response::kDoctor);
}

class Suspects : public ::testing::TestWithParam<CauseKind> {};
INSTANTIATE_TEST_SUITE_P(Decisions, Suspects, ::testing::Values(CauseKind::kGpuSuspect, CauseKind::kPortErrors));

TEST_P(Suspects, are_looked_at_at_once) {
  std::vector<PastAttempt> past{ended(GetParam(), "node1", kHour)};
  EXPECT_EQ(decide(after(past)).action, Response::kDoctor);
  EXPECT_EQ(decide(after(past)).node, "node1");
  EXPECT_EQ(decide(after(past, Diagnosis::kHealthy)).action, Response::kRetry);
  EXPECT_EQ(decide(after(past, Diagnosis::kUnknown)).action, Response::kRetry);
  for (const Diagnosis diagnosis : {Diagnosis::kSuspect, Diagnosis::kBad})
    EXPECT_EQ(decide(after(past, diagnosis)).action, Response::kExclude);
  past.push_back(ended(GetParam(), "node1", 2 * kHour));
  EXPECT_EQ(decide(after(past, Diagnosis::kUnknown)).action, Response::kExclude);
  EXPECT_EQ(decide(after(past, Diagnosis::kHealthy)).action, Response::kRetry);
}

TEST(Decisions, a_straggler_is_excluded_only_with_a_spare_and_where_the_doctor_agrees) {
  const std::vector<PastAttempt> past{ended(CauseKind::kStraggler, "node1", kHour)};
  EXPECT_EQ(decide(after(past)).action, Response::kDoctor);
  for (const Diagnosis diagnosis : {Diagnosis::kSuspect, Diagnosis::kBad})
    EXPECT_EQ(decide(after(past, diagnosis)).action, Response::kExclude);
  for (const Diagnosis diagnosis : {Diagnosis::kHealthy, Diagnosis::kUnknown})
    EXPECT_EQ(decide(after(past, diagnosis)).action, Response::kRetry);
  Situation no_spare = after(past, Diagnosis::kBad);
  no_spare.nodes_usable = no_spare.nodes_needed;
  EXPECT_EQ(decide(no_spare).action, Response::kRetry) << "a slow node is better than none";
}

TEST(Decisions, a_node_is_replaced_at_work_only_with_a_spare) {
  const std::vector<PastAttempt> none, examined{ended(CauseKind::kStraggler, "node1", kHour)};
  const AttemptCause slow{.kind = CauseKind::kStraggler, .node = "node1"},
      sick{.kind = CauseKind::kGpuSick, .node = "node1"}, other{.kind = CauseKind::kStraggler, .node = "node2"};
  for (const AttemptCause& finding : {slow, sick}) {
    Situation situation = after(none);
    EXPECT_EQ(decide_at_work(situation, finding, kHour).action, Response::kReplace);
    EXPECT_EQ(decide_at_work(situation, finding, kHour).node, "node1");
    situation.nodes_usable = situation.nodes_needed;
    EXPECT_EQ(decide_at_work(situation, finding, kHour).action, Response::kReport);
  }
  // The doctor has examined the slow node: once a day is enough.
  EXPECT_EQ(decide_at_work(after(examined), slow, 24 * kHour).action, Response::kReport);
  EXPECT_EQ(decide_at_work(after(examined), slow, 26 * kHour).action, Response::kReplace);
  EXPECT_EQ(decide_at_work(after(examined), sick, 2 * kHour).action, Response::kReplace);
  EXPECT_EQ(decide_at_work(after(examined), other, 2 * kHour).action, Response::kReplace);
}

TEST(Decisions, not_finite_twice_at_a_step_stops_and_once_blames_the_node_when_passed) {
  std::vector<PastAttempt> past{ended(CauseKind::kNotFinite, "node1", kHour, 100)};
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
  EXPECT_FALSE(decide_in_passing(after(past), 100));
  const auto passing = decide_in_passing(after(past), 101);
  ASSERT_TRUE(passing);
  EXPECT_EQ(passing->action, Response::kExclude);
  EXPECT_EQ(passing->node, "node1");
  Situation resubmitted = after(past);
  resubmitted.job = "another";
  EXPECT_FALSE(decide_in_passing(resubmitted, 101)) << "perhaps with another learning rate";
  // An attempt that has passed the step decides it: a node whose exclusion is cleared or expires is used again.
  std::vector<PastAttempt> passed = past;
  passed.push_back(ended(CauseKind::kDeath, "node2", 2 * kHour, 100));
  EXPECT_TRUE(decide_in_passing(after(passed), 101)) << "this one has not come beyond it";
  passed.push_back(ended(CauseKind::kDeath, "node2", 3 * kHour, 150));
  EXPECT_FALSE(decide_in_passing(after(passed), 151));
  past.push_back(ended(CauseKind::kNotFinite, "node2", 2 * kHour, 100));
  EXPECT_EQ(decide(after(past)).action, Response::kStop);
  EXPECT_EQ(decide(after(past)).status, 7);
  EXPECT_FALSE(decide_in_passing(after(past), 101)) << "with other data, or another learning rate";
}

// Flight recorders are read once per second: that an attempt was seen at a step does not mean that it failed there.
TEST(Decisions, steps_that_were_only_seen_are_not_those_of_failures) {
  std::vector<PastAttempt> past{ended(CauseKind::kNotFinite, "node1", kHour),
                                ended(CauseKind::kNotFinite, "node2", 2 * kHour)};
  for (PastAttempt& a : past) a.cause.step = -1;
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
  EXPECT_FALSE(decide_in_passing(after(past), 101));
  for (const int64_t step : {-1, 100}) {
    past = {ended(CauseKind::kDeath, "node1", kHour), ended(CauseKind::kDeath, "node1", 2 * kHour),
            ended(CauseKind::kDeath, "node2", 3 * kHour), ended(CauseKind::kDeath, "node2", 4 * kHour)};
    for (PastAttempt& a : past) a.cause.step = step;
    EXPECT_EQ(decide(after(past)).action, step < 0 ? Response::kDoctor : Response::kRetry) << step;
  }
}

TEST(Decisions, a_spare_that_does_not_see_the_storage_is_excluded_and_the_run_goes_on) {
  PastAttempt trained = ended(CauseKind::kDeath, "node1", kHour),
              failed = without_progress(CauseKind::kFile, 2 * kHour);
  trained.nodes = {"node0", "node1"};
  failed.nodes = {"node0", "node2"};
  failed.step = failed.from_step;
  failed.cause.node = "node2";
  std::vector<PastAttempt> past{trained, failed};
  EXPECT_EQ(decide(after(past)).action, Response::kExclude);
  EXPECT_EQ(decide(after(past)).node, "node2");
  past[1].step = past[1].from_step + 1;
  EXPECT_EQ(decide(after(past)).action, Response::kStop) << "it had seen it";
  for (const std::string node : {"node0", ""}) {
    past[1] = failed;
    past[1].cause.node = node;
    EXPECT_EQ(decide(after(past)).action, Response::kStop) << "a node that has trained can't read it either: " << node;
    EXPECT_EQ(decide(after(past)).status, failed.cause.status);
  }
  past[1] = failed;
  past[1].nodes = {"node0", "node2", "node3"};
  EXPECT_EQ(decide(after(past)).action, Response::kStop) << "two are new: it is hardly both, and which is not known";
  past[1] = failed;
  past[1].nodes = trained.nodes;
  EXPECT_EQ(decide(after(past)).action, Response::kStop) << "no node is new";
  past[1].nodes = {"node2", "node3"};
  EXPECT_EQ(decide(after(past)).action, Response::kStop) << "none of the nodes that have trained is there";
  past.erase(past.begin());
  EXPECT_EQ(decide(after(past)).action, Response::kStop) << "none has trained";
}

TEST(Decisions, attempts_without_a_newer_checkpoint_stop) {
  std::vector<PastAttempt> past{without_progress(CauseKind::kCommunication, 1),
                                without_progress(CauseKind::kCommunication, 2)};
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
  past.push_back(without_progress(CauseKind::kDrained, 3));  // it was stopped, so it does not count
  EXPECT_EQ(attempts_without_checkpoint(past), 2);
  past.push_back(without_progress(CauseKind::kCommunication, 4));
  EXPECT_EQ(decide(after(past)).action, Response::kStop);
  EXPECT_EQ(decide(after(past)).status, kNoProgressStatus);
  past.push_back(ended(CauseKind::kCommunication, "", 5));
  EXPECT_EQ(decide(after(past)).action, Response::kRetry) << "a newer checkpoint restarts the count";
}

TEST(Decisions, a_checkpoint_saved_without_a_driver_restarts_the_count) {
  std::vector<PastAttempt> past{without_progress(CauseKind::kCommunication, 1),
                                without_progress(CauseKind::kCommunication, 2),
                                without_progress(CauseKind::kCommunication, 3)};
  past[1].ended = 0;                                                // its driver was killed
  past[2].from_step = past[2].checkpoint = past[1].from_step + 20;  // saved by the previous attempt
  EXPECT_EQ(attempts_without_checkpoint(past), 1);
  past[2] = without_progress(CauseKind::kCommunication, 3);
  EXPECT_EQ(attempts_without_checkpoint(past), 2);
}

TEST(Decisions, a_slow_start_is_retried_and_the_second_of_a_node_excludes) {
  std::vector<PastAttempt> past{ended(CauseKind::kSlowStart, "node1", kHour)};
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
  past.push_back(ended(CauseKind::kSlowStart, "node2", 2 * kHour));
  EXPECT_EQ(decide(after(past)).action, Response::kRetry);
  past.push_back(ended(CauseKind::kSlowStart, "node1", 3 * kHour));
  EXPECT_EQ(decide(after(past)).action, Response::kExclude);
  EXPECT_EQ(decide(after(past)).node, "node1");
}

TEST(Decisions, four_unattributed_slow_starts_count_as_one_attempt_without_progress) {
  std::vector<PastAttempt> past;
  for (int i = 1; i <= 12; ++i) {
    past.push_back(without_progress(CauseKind::kSlowStart, i));
    EXPECT_EQ(attempts_without_checkpoint(past), i / 4);
    EXPECT_EQ(decide(after(past)).action, i < 12 ? Response::kRetry : Response::kStop) << "it must end some time";
  }
}

TEST(Decisions, too_few_nodes_need_a_successor_without_the_node) {
  const std::vector<PastAttempt> past{ended(CauseKind::kNodeLost, "node1", kHour)};
  Situation situation = after(past);
  situation.nodes_usable = 3;
  EXPECT_EQ(decide(situation).action, Response::kExclude);
  situation.nodes_usable = 2;
  EXPECT_EQ(decide(situation).action, Response::kSuccessor);
  EXPECT_EQ(decide(situation).node, "node1");
  EXPECT_EQ(decide(situation).status, 75);
}

TEST(Decisions, before_the_start_a_bad_node_is_excluded_where_that_is_its_own_fault_and_others_are_there) {
  using Looked = std::vector<std::pair<std::string, Diagnosis>>;
  const auto bad = Diagnosis::kBad, healthy = Diagnosis::kHealthy;
  const auto actions = [](const Looked& nodes, int needed) {
    std::string text;
    for (const Decision& d : decide_before_start(nodes, needed, static_cast<int>(nodes.size())))
      text += d.node + " " + std::string(enum_name(d.action)) + "; ";
    return text;
  };
  EXPECT_EQ(actions({{"a", healthy}, {"b", Diagnosis::kUnknown}}, 2), "");
  EXPECT_EQ(actions({{"a", bad}, {"b", healthy}, {"c", healthy}}, 2), "a exclude; ");
  EXPECT_EQ(actions({{"a", bad}, {"b", healthy}, {"c", healthy}}, 3), "a report; ") << "no spare";
  EXPECT_EQ(actions({{"a", bad}, {"b", healthy}, {"c", healthy}, {"d", bad}}, 3), "a exclude; d report; ");
  EXPECT_EQ(actions({{"a", bad}, {"b", bad}, {"c", healthy}}, 1), "a report; b report; ") << "most: a shared fault";
  EXPECT_EQ(actions({{"a", Diagnosis::kSuspect}, {"b", healthy}}, 1), "a report; ");
  EXPECT_EQ(actions({{"a", bad}}, 1), "a report; ");
}

// Whatever happened: a node is excluded or examined only if one is named, and statuses match the end.
TEST(Decisions, every_cause_has_an_answer_that_fits) {
  for (const auto& [kind, name] : EnumNames<CauseKind>::table)
    for (const std::string node : {"", "node1"})
      for (const auto& diagnosis : {std::optional<Diagnosis>(), std::optional(Diagnosis::kHealthy),
                                    std::optional(Diagnosis::kBad), std::optional(Diagnosis::kUnknown)})
        for (const int usable : {1, 2, 4})
          for (const int earlier : {0, 1, 2, 4}) {
            std::vector<PastAttempt> past;
            for (int i = 0; i <= earlier; ++i) past.push_back(ended(kind, node, kHour * (i + 1), 100 + i));
            Situation situation = after(past, diagnosis);
            situation.nodes_usable = usable;
            const Decision decision = decide(situation);
            SCOPED_TRACE(fmt::format("{} {} {} {}", name, node, usable, earlier));
            const bool of_a_node = decision.action == Response::kExclude || decision.action == Response::kDoctor;
            EXPECT_EQ(of_a_node && decision.node.empty(), false);
            EXPECT_FALSE(diagnosis && decision.action == Response::kDoctor) << "the doctor ran twice for one attempt";
            const bool ends = decision.action == Response::kStop || decision.action == Response::kLeave ||
                              decision.action == Response::kSuccessor;
            EXPECT_EQ(decision.status != 0, ends);
            EXPECT_FALSE(decision.why.empty());
            EXPECT_FALSE(decision.action == Response::kExclude && usable <= situation.nodes_needed);
          }
}

TEST(Decisions, know_the_doctors_statuses) {
  EXPECT_EQ(diagnosis_of(0), Diagnosis::kHealthy);
  EXPECT_EQ(diagnosis_of(40), Diagnosis::kSuspect);
  EXPECT_EQ(diagnosis_of(41), Diagnosis::kBad);
  EXPECT_EQ(diagnosis_of(2), Diagnosis::kUnknown);
}

}  // namespace
}  // namespace tri
