// The meaning of `auto`, over tables of configs and of the facts that ranks report.
#include "lib/engine/job_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "lib/config/axis_fields.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/layer_division.h"
#include "tests/engine/facts.h"

namespace tri {
namespace {

using namespace test;

constexpr int64_t kGiB = int64_t{1} << 30;

DevicePlan device_of(DeviceChoice choice, const JobFacts& facts) { return value_or_throw(plan_device(choice, facts)); }

TEST(PlanDevice, each_rank_gets_a_gpu_of_its_own) {
  for (const DeviceChoice choice : {DeviceChoice::kAuto, DeviceChoice::kCuda}) {
    const DevicePlan all = device_of(choice, all_see_all(8, 4, 4));
    EXPECT_EQ(all.kind, DeviceKind::kCuda);
    EXPECT_EQ(all.ordinals, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
    const DevicePlan spare = device_of(choice, all_see_all(4, 2, 8));
    EXPECT_EQ(spare.ordinals, (std::vector<int>{0, 1, 0, 1}));
    const DevicePlan own = device_of(choice, each_sees_its_own(8, 4));
    EXPECT_EQ(own.kind, DeviceKind::kCuda);
    EXPECT_EQ(own.ordinals, std::vector<int>(8, 0));
  }
}

// Two ranks of a machine see the same two GPUs, the next two ranks the other two.
TEST(PlanDevice, subsets_of_a_machines_gpus_work) {
  JobFacts facts = on_cpus(4, 4);
  facts[0].gpus = facts[1].gpus = {"a", "b"};
  facts[2].gpus = facts[3].gpus = {"c", "d"};
  EXPECT_EQ(device_of(DeviceChoice::kAuto, facts).ordinals, (std::vector<int>{0, 1, 0, 1}));
}

TEST(PlanDevice, without_any_gpu_auto_is_the_cpu_and_cpu_is_the_cpu_always) {
  EXPECT_EQ(device_of(DeviceChoice::kAuto, on_cpus(8, 4)).kind, DeviceKind::kCpu);
  EXPECT_EQ(device_of(DeviceChoice::kAuto, on_cpus(8, 4)).ordinals, std::vector<int>(8, 0));
  EXPECT_EQ(device_of(DeviceChoice::kCpu, all_see_all(8, 4, 4)).kind, DeviceKind::kCpu);
}

TEST(PlanDevice, a_rank_without_a_gpu_among_others_with_gpus_is_an_error_that_names_the_node) {
  JobFacts dead = all_see_all(8, 4, 4);
  for (size_t rank = 4; rank < 8; ++rank) dead[rank].gpus.pop_back();  // node1 lacks one GPU
  JobFacts blind = each_sees_its_own(8, 4);
  blind[5].gpus.clear();
  blind[5].no_gpu_because = "CUDA-capable device is busy";
  JobFacts shared = each_sees_its_own(8, 4);
  shared[5].gpus = shared[4].gpus;
  JobFacts no_driver = all_see_all(8, 4, 4);
  for (size_t rank = 4; rank < 8; ++rank) no_driver[rank].gpus.clear();
  const std::tuple<JobFacts, std::string, std::string> table[] = {
      {dead, "rank 7 on node node1", "sees 3, which other ranks use"},
      {blind, "rank 5 on node node1", "CUDA-capable device is busy"},
      {shared, "rank 5 on node node1", "sees 1, which other ranks use"},
      {no_driver, "rank 4 on node node1", "3 more ranks"}};
  for (const auto& [facts, who, why] : table)
    for (const DeviceChoice choice : {DeviceChoice::kAuto, DeviceChoice::kCuda}) {
      const auto plan = plan_device(choice, facts);
      ASSERT_FALSE(plan) << who;
      EXPECT_EQ(plan.error().code, ExitCode::kDevice);
      for (const std::string& words : {"run.device: " + std::string(enum_name(choice)), who, why})
        EXPECT_NE(plan.error().message.find(words), std::string::npos) << plan.error().message;
    }
  EXPECT_FALSE(plan_device(DeviceChoice::kCuda, on_cpus(2, 2)));
}

struct Row {
  const char* name;
  Axes axes;
  int a_node;                           // ranks per machine
  std::function<void(Config&)> change;  // changes the config's defaults
  std::function<void(JobFacts&)> find;  // changes the facts
  Transfers tp = Transfers::kCollectives, dp = Transfers::kCollectives;
  PpTransfers pp = PpTransfers::kMessages;  // expected in the resulting config
};

TEST(PlanJob, transfers_by_config_and_facts) {
  const auto nothing = [](auto&) {};
  const Row table[] = {
      {"alone", {}, 1, nothing, nothing},
      {"tp on a machine", {.tp = 4}, 4, nothing, nothing, Transfers::kCopies},
      {"tp over machines", {.tp = 4}, 2, nothing, nothing},
      {"one of several tp groups over machines", {.tp = 2, .dp = 3}, 3, nothing, nothing},
      {"tp without overlap", {.tp = 4}, 4, [](Config& c) { c.parallel.overlap_tp = false; }, nothing},
      {"tp: collectives wanted",
       {.tp = 4},
       4,
       [](Config& c) { c.parallel.tp_transfers = Transfers::kCollectives; },
       nothing},
      {"tp: a peer can't be opened", {.tp = 4}, 4, nothing, [](JobFacts& f) { f[2].tp_problem = "refused"; }},
      {"dp on a machine", {.dp = 4}, 4, nothing, nothing, Transfers::kCollectives, Transfers::kCopies},
      {"dp over machines", {.dp = 4}, 2, nothing, nothing},
      {"dp: a peer can't be opened", {.dp = 4}, 4, nothing, [](JobFacts& f) { f[3].dp_problem = "refused"; }},
      {"dp without zero", {.dp = 4}, 4, [](Config& c) { c.parallel.zero = 0; }, nothing},
      {"dp without overlap", {.dp = 4}, 4, [](Config& c) { c.parallel.overlap_dp = false; }, nothing},
      {"dp alongside tp", {.tp = 2, .dp = 2}, 4, nothing, nothing, Transfers::kCopies},
      {"dp alongside tp, insisted on",
       {.tp = 2, .dp = 2},
       4,
       [](Config& c) { c.parallel.dp_transfers = Transfers::kCopies; },
       nothing,
       Transfers::kCopies,
       Transfers::kCopies},
      {"tp inside machines, dp over them", {.tp = 2, .dp = 2}, 2, nothing, nothing, Transfers::kCopies},
      {"stages on a machine",
       {.pp = 4},
       4,
       nothing,
       nothing,
       Transfers::kCollectives,
       Transfers::kCollectives,
       PpTransfers::kCopies},
      {"stages: messages wanted",
       {.pp = 4},
       4,
       [](Config& c) { c.parallel.pp_transfers = PpTransfers::kMessages; },
       nothing},
      {"a machine a stage", {.pp = 4}, 1, nothing, nothing},
      {"stages on two machines",
       {.pp = 4},
       2,
       nothing,
       nothing,
       Transfers::kCollectives,
       Transfers::kCollectives,
       PpTransfers::kAuto},
      {"a neighbour can't be opened",
       {.pp = 4},
       4,
       nothing,
       [](JobFacts& f) { f[1].pp_problem = "refused"; },
       Transfers::kCollectives,
       Transfers::kCollectives,
       PpTransfers::kAuto},
      {"all three axes",
       {.tp = 2, .dp = 2, .pp = 2},
       8,
       nothing,
       nothing,
       Transfers::kCopies,
       Transfers::kCollectives,
       PpTransfers::kCopies},
  };
  for (const Row& row : table) {
    Config config = config_of(row.axes);
    row.change(config);
    JobFacts facts = on_cpus(row.axes.ranks(), row.a_node);
    row.find(facts);
    const auto plan = plan_job(config, facts);
    ASSERT_TRUE(plan) << row.name << ": " << plan.error().message;
    EXPECT_EQ(plan.value().tp, row.tp) << row.name;
    EXPECT_EQ(plan.value().dp, row.dp) << row.name;
    const Config planned = with_plan(config, plan.value());
    EXPECT_EQ(planned.run.device, DeviceChoice::kCpu) << row.name;
    EXPECT_EQ(planned.parallel.tp_transfers, row.tp) << row.name;
    EXPECT_EQ(planned.parallel.dp_transfers, row.dp) << row.name;
    EXPECT_EQ(planned.parallel.pp_transfers, row.pp) << row.name;
    EXPECT_FALSE(plan.value().lines.empty());
    // The plan means the same to the code that lays out memory, and planning it again changes nothing.
    Arena measuring;
    const RankTensors tensors = allocate_rank(
        planned, make_mesh(0, {{"tp", row.axes.tp}, {"dp", row.axes.dp}, {"pp", row.axes.pp}}), measuring);
    EXPECT_EQ(!tensors.stage.peer_copies.flags.empty(), row.tp == Transfers::kCopies) << row.name;
    EXPECT_EQ(!tensors.store.peer_copies.flags.empty(), row.dp == Transfers::kCopies) << row.name;
    EXPECT_EQ(with_plan(planned, value_or_throw(plan_job(planned, facts))), planned) << row.name;
  }
}

// Stages 0 and 1 are on one machine, 2 and 3 on another; with chunks the ring spans both.
TEST(PlanJob, stages_copy_where_neighbours_share_a_machine) {
  const auto edges = [](const Axes& axes, int a_node) {
    return value_or_throw(plan_job(config_of(axes), on_cpus(axes.ranks(), a_node))).pp;
  };
  constexpr auto kCopies = PpTransfers::kCopies, kMessages = PpTransfers::kMessages;
  EXPECT_EQ(edges({.pp = 4}, 2), (std::vector{kCopies, kMessages, kCopies, kMessages}));
  EXPECT_EQ(edges({.pp = 2, .chunks = 2}, 2), (std::vector{kCopies, kCopies}));
  EXPECT_EQ(edges({.pp = 2}, 2), (std::vector{kCopies, kMessages}));  // the last stage does not send to the first
  EXPECT_EQ(edges({.tp = 2, .pp = 2}, 4), (std::vector{kCopies, kCopies, kMessages, kMessages}));
}

TEST(PlanJob, copies_that_are_insisted_on_and_cannot_be_are_an_error_that_names_the_field) {
  struct Insists {
    Axes axes;
    const char* field;
    std::function<void(Config&)> insist;
    std::string RankFacts::*problem;
  };
  const Insists table[] = {
      {{.tp = 2}, "tp", [](Config& c) { c.parallel.tp_transfers = Transfers::kCopies; }, &RankFacts::tp_problem},
      {{.dp = 2}, "dp", [](Config& c) { c.parallel.dp_transfers = Transfers::kCopies; }, &RankFacts::dp_problem},
      {{.pp = 2}, "pp", [](Config& c) { c.parallel.pp_transfers = PpTransfers::kCopies; }, &RankFacts::pp_problem},
      {{.dp = 2},
       "ep",
       [](Config& c) {
         c.model.experts = c.parallel.ep = 2;
         c.model.expert_hidden = 128;
         c.parallel.dp_transfers = Transfers::kCollectives;
         c.parallel.ep_transfers = Transfers::kCopies;
       },
       &RankFacts::ep_problem}};
  for (const Insists& row : table) {
    Config config = config_of(row.axes);
    row.insist(config);
    EXPECT_TRUE(plan_job(config, on_cpus(2, 2))) << row.field;
    const auto apart = plan_job(config, on_cpus(2, 1));
    ASSERT_FALSE(apart) << row.field;
    EXPECT_EQ(apart.error().code, ExitCode::kUsage);
    EXPECT_EQ(
        apart.error().message,
        fmt::format("parallel.{}_transfers: copies: the group's ranks are on several machines; set auto", row.field));
    JobFacts refused = on_cpus(2, 2);
    refused[0].*row.problem = "no such file";
    const auto plan = plan_job(config, refused);
    ASSERT_FALSE(plan) << row.field;
    EXPECT_EQ(plan.error().message, fmt::format("parallel.{}_transfers: copies: no such file; set auto", row.field));
  }
}

// One rank's limit applies to all groups: all use the same transfers, and requested copies are refused.
TEST(PlanJob, memory_beyond_the_lowest_limit_of_any_rank_is_not_shared) {
  const std::tuple<Axes, const char*, std::function<void(Config&)>> table[] = {
      {{.tp = 2, .dp = 2}, "tp", [](Config& c) { c.parallel.tp_transfers = Transfers::kCopies; }},
      {{.dp = 4}, "dp", [](Config& c) { c.parallel.dp_transfers = Transfers::kCopies; }},
      {{.pp = 4}, "pp", [](Config& c) { c.parallel.pp_transfers = PpTransfers::kCopies; }}};
  for (const auto& [axes, field, insist] : table) {
    Config config = config_of(axes);
    const auto shared = plan_job(config, on_cpus(4, 4));
    ASSERT_TRUE(shared) << shared.error().message;
    const Config copies = with_plan(config, shared.value());
    int64_t largest = 0;
    for (int rank = 0; rank < 4; ++rank) {
      Arena measuring;
      allocate_rank(copies, make_mesh(rank, {{"tp", axes.tp}, {"dp", axes.dp}, {"pp", axes.pp}}), measuring);
      largest = std::max(largest, measuring.used());
    }
    const auto planned = [&](int64_t limit) {
      JobFacts facts = on_cpus(4, 4);
      facts[1].most_shared_bytes = 100 * kGiB;
      facts[2].most_shared_bytes = limit;
      return plan_job(config, facts);
    };
    EXPECT_EQ(with_plan(config, value_or_throw(planned(largest))), copies) << field;
    const JobPlan apart = value_or_throw(planned(largest - 1));
    EXPECT_EQ(apart.tp, Transfers::kCollectives) << field;
    EXPECT_EQ(apart.dp, Transfers::kCollectives) << field;
    EXPECT_EQ(apart.pp, std::vector(4, PpTransfers::kMessages)) << field;
    const std::string why = fmt::format(
        "{} bytes of a rank's memory cannot be shared, since rank 2 on node node0 is limited to files of {} bytes "
        "(ulimit -f)",
        largest, largest - 1);
    EXPECT_NE(to_string(apart).find(fmt::format("(parallel.{}_transfers: auto: {})", field, why)), std::string::npos)
        << to_string(apart);
    insist(config);
    EXPECT_TRUE(planned(largest)) << field;
    const auto refused = planned(largest - 1);
    ASSERT_FALSE(refused) << field;
    EXPECT_EQ(refused.error().code, ExitCode::kUsage);
    EXPECT_EQ(refused.error().message, fmt::format("parallel.{}_transfers: copies: {}; set auto", field, why));
  }
}

// Free memory between each level's need and one byte less, on the one stage that has least of it.
TEST(PlanJob, recompute_auto_is_the_first_level_that_fits_on_every_rank) {
  Config config = config_of({.dp = 2, .pp = 2});
  config.parallel.recompute = Recompute::kAuto;
  config.model.seq_len = 512;
  const auto bytes = [&](Recompute level, int stage) {
    Config tried = with_plan(config, value_or_throw(plan_job(config, on_cpus(4, 4))));
    tried.parallel.recompute = level;
    Arena measuring;
    allocate_rank(tried, make_mesh(2 * stage, {{"dp", 2}, {"pp", 2}}), measuring);
    return measuring.used();
  };
  const auto planned = [&](int64_t room_0, int64_t room_1) {
    JobFacts facts = on_cpus(4, 4);
    for (size_t rank = 0; rank < 4; ++rank) facts[rank].free_bytes = 100 * kGiB;
    facts[1].free_bytes = 2 * 4 * room_0;  // on the CPU a rank may use half of its share
    facts[3].free_bytes = 2 * 4 * room_1;
    return value_or_throw(plan_job(config, facts)).recompute;
  };
  const int64_t much = 10 * kGiB;
  EXPECT_EQ(planned(much, much), Recompute::kNone);
  for (const int stage : {0, 1}) {
    const auto on_stage = [&](int64_t room) { return stage == 0 ? planned(room, much) : planned(much, room); };
    ASSERT_GT(bytes(Recompute::kNone, stage), bytes(Recompute::kNorms, stage));
    ASSERT_GT(bytes(Recompute::kNorms, stage), bytes(Recompute::kSelective, stage));
    EXPECT_EQ(on_stage(bytes(Recompute::kNone, stage)), Recompute::kNone);
    EXPECT_EQ(on_stage(bytes(Recompute::kNone, stage) - 1), Recompute::kNorms);
    EXPECT_EQ(on_stage(bytes(Recompute::kNorms, stage) - 1), Recompute::kSelective);
    EXPECT_EQ(on_stage(bytes(Recompute::kSelective, stage) - 1), Recompute::kFull);
  }
  EXPECT_EQ(value_or_throw(plan_job(config, on_cpus(4, 4))).recompute, Recompute::kAuto)
      << "the free memory is unknown";
  JobFacts facts = on_cpus(4, 4);
  for (RankFacts& rank : facts)
    rank.free_bytes = 2 * 4 * bytes(Recompute::kNone, 0) + 2 * 4 * bytes(Recompute::kNone, 1);
  facts[0].workspace_bytes = bytes(Recompute::kNone, 1) + 1;
  EXPECT_EQ(value_or_throw(plan_job(config, facts)).recompute, Recompute::kNorms) << "kernels take a byte too many";
  facts[0].workspace_bytes = bytes(Recompute::kNone, 1);
  EXPECT_EQ(value_or_throw(plan_job(config, facts)).recompute, Recompute::kNone);
  config.parallel.recompute = Recompute::kSelective;
  EXPECT_EQ(planned(much, much), Recompute::kSelective) << "an explicit setting is not changed";
}

// One GPU per rank. A pass that no kernel supports is refused here, before memory is allocated; a slow one is reported.
TEST(PlanJob, schedule_auto_is_the_fastest_that_fits_on_every_rank) {
  Config config = config_of({.pp = 4});
  config.parallel.schedule = Schedule::kAuto;
  const auto chosen = [&](const JobFacts& facts, EngineKind kind = EngineKind::kTraining) {
    const JobPlan plan = value_or_throw(plan_job(config, facts, kind));
    const Config planned = with_plan(config, plan);
    EXPECT_EQ(planned.parallel.schedule, plan.schedule);
    EXPECT_NE(to_string(plan).find("parallel.schedule: auto: "), std::string::npos) << to_string(plan);
    return planned.parallel.schedule;
  };
  JobFacts facts = on_cpus(4, 4);
  EXPECT_EQ(chosen(facts), Schedule::kZbH1) << "unknown memory";
  EXPECT_EQ(chosen(facts, EngineKind::kInference), Schedule::k1F1B);
  // Memory that 1F1B just needs: the last stage keeps one microbatch there, and four with zb_h1.
  Config whole = config;
  whole.parallel.schedule = Schedule::k1F1B;
  for (const bool ample : {true, false}) {
    for (size_t rank = 0; rank < facts.size(); ++rank) {
      Arena arena;
      allocate_rank(whole, mesh_of(whole, static_cast<int>(rank)), arena);
      facts[rank].free_bytes = (ample ? 100 : 1) * 2 * int64_t{facts[rank].node_size} * arena.used();
    }
    EXPECT_EQ(chosen(facts), ample ? Schedule::kZbH1 : Schedule::k1F1B);
  }
  config = config_of({.pp = 2, .chunks = 2});
  config.parallel.schedule = Schedule::kAuto;
  const auto seconds_of = [&](Schedule schedule) {
    Config tried = config;
    tried.parallel.schedule = schedule;
    return step_seconds(tried, config.data.global_batch / config.data.micro_batch);
  };
  EXPECT_EQ(chosen(on_cpus(2, 2)),
            seconds_of(Schedule::kZbV) < seconds_of(Schedule::kInterleaved) ? Schedule::kZbV : Schedule::kInterleaved);
  EXPECT_EQ(chosen(on_cpus(2, 2), EngineKind::kInference), Schedule::kInterleaved);
  config = config_of({});
  config.parallel.schedule = Schedule::kAuto;
  EXPECT_EQ(chosen(on_cpus(1, 1)), Schedule::k1F1B);
  config.parallel.schedule = Schedule::kGpipe;
  EXPECT_FALSE(value_or_throw(plan_job(config, on_cpus(1, 1))).schedule) << "the config's own";
}

// Without hardware too: the memory of 1F1B, which zb_h1 exceeds, then less than both need.
TEST(PlanJob, schedule_auto_on_paper_fits_into_the_memory_that_a_gpu_has) {
  Config config = config_of({.pp = 4});
  config.run.device = DeviceChoice::kCuda;
  config.precision.compute = Dtype::kBF16;
  config.parallel.schedule = Schedule::kAuto;
  const auto planned = [&](std::optional<int64_t> free_bytes) {
    return value_or_throw(plan_job(config, facts_on_paper(config, 4, {}, free_bytes)));
  };
  EXPECT_EQ(planned({}).schedule, Schedule::kZbH1);
  EXPECT_NE(to_string(planned({})).find("the free memory is unknown"), std::string::npos);
  const auto bytes_of = [&](Schedule schedule) {
    Config tried = with_plan(config, planned({}));
    tried.parallel.schedule = schedule;
    int64_t most = 0;
    for (int rank = 0; rank < 4; ++rank) {
      Arena arena;
      allocate_rank(tried, mesh_of(tried, rank), arena);
      most = std::max(most, arena.used());
    }
    return most;
  };
  const int64_t whole = bytes_of(Schedule::k1F1B), split = bytes_of(Schedule::kZbH1), reserved = 2 * kGiB;
  ASSERT_LT(whole, split);
  EXPECT_EQ(planned(reserved + split).schedule, Schedule::kZbH1);
  const JobPlan less = planned(reserved + split - 1), least = planned(reserved + whole - 1);
  EXPECT_EQ(less.schedule, Schedule::k1F1B);
  EXPECT_NE(to_string(less).find("but the latter needs "), std::string::npos) << to_string(less);
  EXPECT_EQ(planned(reserved + whole).schedule, Schedule::k1F1B);
  EXPECT_EQ(least.schedule, Schedule::k1F1B) << "it needs the least";
  const auto warns = [](const JobPlan& plan) {
    return std::ranges::any_of(plan.warnings, [](const std::string& warning) {
      return warning.starts_with("parallel.schedule: auto: neither fits: 1f1b needs ");
    });
  };
  EXPECT_TRUE(warns(least)) << to_string(least);
  EXPECT_FALSE(warns(less)) << to_string(less);
}

TEST(PlanJob, chunks_of_sequences_are_whole_tiles_on_gpus) {
  Config config = config_of({});
  config.parallel.cp = 2;
  config.run.device = DeviceChoice::kAuto;
  const JobFacts cpus = on_cpus(2, 2), gpus = each_sees_its_own(2, 2);
  const auto on_cpu = plan_job(value_or_throw(resolve_config(config, 2)), cpus);
  ASSERT_TRUE(on_cpu) << on_cpu.error().message;
  EXPECT_NE(to_string(on_cpu.value()).find("cp: exchanges of keys and values, alongside compute"), std::string::npos);
  for (const auto& [seq_len, longer] : {std::pair{16, 512}, {640, 1024}}) {
    config.model.seq_len = seq_len;
    const auto refused = plan_job(value_or_throw(resolve_config(config, 2)), gpus);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message,
              fmt::format("parallel.cp: 2: on GPUs the 4 chunks of a sequence must be multiples of 128 tokens, but "
                          "model.seq_len is {}; set model.seq_len to {}",
                          seq_len, longer));
  }
  config.model.seq_len = 1024;
  EXPECT_TRUE(plan_job(value_or_throw(resolve_config(config, 2)), gpus));
}

TEST(PlanJob, attention_is_planned_on_every_ranks_gpu) {
  const auto planned = [](int hidden, int seq_len, const std::vector<GpuProperties>& gpus,
                          EngineKind kind = EngineKind::kTraining, AttentionKernel kernel = AttentionKernel::kAuto,
                          bool deterministic = true) {
    Config config = config_of({.dp = static_cast<int>(gpus.size())});
    config.run.deterministic = deterministic;
    config.precision.compute = Dtype::kBF16;
    config.model.hidden = hidden;  // with 4 heads
    config.model.head_dim = hidden / 4;
    config.model.seq_len = seq_len;
    config.model.attention = kernel;
    JobFacts facts = each_sees_its_own(config.parallel.dp, 1);
    for (size_t rank = 0; rank < facts.size(); ++rank) facts[rank].gpu = gpus[rank];
    return plan_job(config, facts, kind);
  };
  const auto said = [](const Result<JobPlan>& plan) { return to_string(value_or_throw(plan)); };
  // `h200`: a build without the project's kernels for Hopper.
  const GpuProperties h200{.has_hopper_attention = false}, no_cudnn{.has_cudnn = false},
      small{.max_shared_bytes = 99 * 1024, .has_cudnn = false};
  const auto fast = planned(4 * 128, 64, {h200, h200});
  EXPECT_NE(said(planned(4 * 128, 16384, {GpuProperties{}})).find("backward FlashAttention kernels"),
            std::string::npos);
  EXPECT_NE(said(fast).find("attention: forward cuDNN, backward cuDNN (model.attention: auto)"), std::string::npos);
  EXPECT_TRUE(fast.value().warnings.empty());
  const auto forward = planned(4 * 128, 64, {h200}, EngineKind::kInference);
  EXPECT_NE(said(forward).find("attention: forward cuDNN (model"), std::string::npos) << said(forward);

  // run.deterministic: false is reported only if a kernel uses it.
  EXPECT_EQ(said(fast).find("any order"), std::string::npos);
  const std::string any_order = "backward cuDNN, sums in any order (run.deterministic: false)";
  const auto loose = [&](const std::vector<GpuProperties>& gpus, EngineKind kind = EngineKind::kTraining) {
    return said(planned(4 * 128, 64, gpus, kind, AttentionKernel::kAuto, false));
  };
  EXPECT_NE(loose({h200, h200}).find(any_order), std::string::npos) << loose({h200, h200});
  EXPECT_NE(loose({h200, no_cudnn}).find("sums in any order"), std::string::npos) << "the first rank's";
  EXPECT_EQ(loose({no_cudnn}).find("any order"), std::string::npos);
  EXPECT_EQ(loose({h200}, EngineKind::kInference).find("any order"), std::string::npos);

  const auto slow = planned(4 * 65, 64, {h200});
  EXPECT_NE(said(slow).find("attention: forward scalar kernels, backward scalar kernels"), std::string::npos);
  ASSERT_EQ(slow.value().warnings.size(), 1u);
  EXPECT_NE(slow.value().warnings[0].find("head size 65"), std::string::npos);
  // With different GPUs, the job waits for the slowest.
  const auto mixed = planned(4 * 128, 64, {h200, no_cudnn, small});
  EXPECT_NE(said(mixed).find("attention: forward scalar kernels, backward scalar kernels"), std::string::npos);
  ASSERT_EQ(mixed.value().warnings.size(), 1u);
  EXPECT_NE(mixed.value().warnings[0].find("(the GPU of rank 2 on node node2)"), std::string::npos);

  const auto launches = planned(4 * 65, 32768, {h200}, EngineKind::kInference);
  EXPECT_TRUE(launches) << "forward keeps half as much as backward";
  const std::tuple<Result<JobPlan>, std::string, std::string> refused[] = {
      {planned(4 * 65, 32768, {h200}), "model.seq_len: 32768", "a model.head_dim that is a multiple of 8"},
      {planned(4 * 65, 16384, {h200, small}), "model.seq_len: 16384", "rank 1 on node node1"},
      {planned(4 * 65, 64, {h200}, EngineKind::kTraining, AttentionKernel::kCudnn), "model.attention: cudnn", "auto"}};
  for (const auto& [plan, field, remedy] : refused) {
    ASSERT_FALSE(plan) << field;
    EXPECT_EQ(plan.error().code, ExitCode::kUsage);
    EXPECT_NE(plan.error().message.find(field), std::string::npos) << plan.error().message;
    EXPECT_NE(plan.error().message.find(remedy), std::string::npos) << plan.error().message;
  }
  EXPECT_TRUE(value_or_throw(plan_job(config_of({}), on_cpus(1, 1))).warnings.empty());
}

// The planner relies on this: ranks of a stage need equal memory.
TEST(PlanJob, memory_depends_on_the_stage_alone) {
  for (const int zero : {0, 1, 2}) {
    Config config = config_of({.tp = 2, .dp = 2, .pp = 2});
    config.parallel.zero = zero;
    const Config planned = with_plan(config, value_or_throw(plan_job(config, on_cpus(8, 8))));
    std::vector<int64_t> bytes;
    for (int rank = 0; rank < 8; ++rank) {
      Arena measuring;
      allocate_rank(planned, make_mesh(rank, {{"tp", 2}, {"dp", 2}, {"pp", 2}}), measuring);
      bytes.push_back(measuring.used());
    }
    for (size_t rank = 0; rank < 8; ++rank) EXPECT_EQ(bytes[rank], bytes[rank / 4 * 4]) << "zero " << zero;
  }
}

// `trireme check` without hardware assumes machines of cluster.ranks_per_node ranks.
TEST(PlanJob, facts_on_paper_are_what_the_config_describes) {
  Config config = config_of({.tp = 2, .dp = 4});
  config.cluster.ranks_per_node = 4;
  config.run.device = DeviceChoice::kCuda;
  const JobFacts facts = facts_on_paper(config, 8);
  const JobPlan plan = value_or_throw(plan_job(config, facts));
  EXPECT_EQ(plan.device.kind, DeviceKind::kCuda);
  EXPECT_EQ(plan.tp, Transfers::kCopies);
  EXPECT_EQ(facts[3].machine, facts[0].machine);
  EXPECT_NE(facts[4].machine, facts[0].machine);
  config.parallel.dp_transfers = Transfers::kCopies;
  const auto refused = plan_job(config, facts);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("parallel.dp_transfers"), std::string::npos);
}

}  // namespace
}  // namespace tri
