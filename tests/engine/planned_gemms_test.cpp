// When layers multiply FP8: precision.gemm: auto over what ranks found, what the last start meant, and what is said.
#include <gtest/gtest.h>

#include "lib/engine/job_plan.h"
#include "lib/engine/kept_gemm.h"
#include "tests/engine/facts.h"

namespace tri {
namespace {

using namespace test;

// A model in bf16 whose sides FP8 takes.
Config config_with(GemmFormat gemm, int dp) {
  Config config = config_of({.dp = dp});
  config.precision.compute = Dtype::kBF16;
  config.precision.gemm = gemm;
  config.model.hidden = config.model.ffn_hidden = 256;
  config.model.seq_len = 64;
  return config;
}

// A run that goes on multiplies as it did, whatever its GPUs would measure today.
TEST(PlannedGemms, auto_gemms_are_those_of_the_runs_last_start) {
  const Config config = config_with(GemmFormat::kAuto, 1);
  JobFacts facts = each_sees_its_own(1, 1);
  facts[0].gpu = GpuProperties{};
  for (const GemmFormat kept : {GemmFormat::kFp8, GemmFormat::kCompute}) {
    facts[0].kept_gemm = kept;
    const JobPlan plan = value_or_throw(plan_job(config, facts));
    EXPECT_EQ(plan.gemm, kept);
    EXPECT_NE(to_string(plan).find("(precision.gemm: auto: as at the run's last start)"), std::string::npos)
        << to_string(plan);
  }
  facts[0].kept_gemm = GemmFormat::kFp8;
  facts[0].gpu->capability = 80;
  EXPECT_EQ(value_or_throw(plan_job(config, facts)).gemm, GemmFormat::kCompute) << "these GPUs have no FP8";
}

TEST(PlannedGemms, switches_of_fp8_are_told_and_where_they_change_nothing) {
  Config config = config_of({.dp = 1});
  config.precision.compute = Dtype::kBF16;
  config.precision.gemm = GemmFormat::kFp8;
  const JobFacts facts(1);
  const auto text = [&] { return to_string(value_or_throw(plan_job(config, facts))); };
  EXPECT_NE(text().find("gradients e5m2, emulated (precision.gemm: fp8)"), std::string::npos) << text();
  config.precision.fp8_guard = Switch::kOn;
  config.precision.fp8_wgrad = GemmFormat::kCompute;
  EXPECT_NE(text().find("emulated, weight gradients bf16, guard on"), std::string::npos) << text();
  EXPECT_TRUE(value_or_throw(plan_job(config, facts)).warnings.empty());
  config.precision.gemm = GemmFormat::kCompute;
  const auto warnings = [&] { return value_or_throw(plan_job(config, facts)).warnings; };
  const std::vector<std::string> both = {
      "precision.fp8_guard and fp8_wgrad change nothing where precision.gemm is compute"};
  EXPECT_EQ(warnings(), both);
  config.precision.fp8_guard = Switch::kOff;
  const std::vector<std::string> one = {"precision.fp8_wgrad changes nothing where precision.gemm is compute"};
  EXPECT_EQ(warnings(), one);
  config.precision.fp8_wgrad = GemmFormat::kFp8;
  EXPECT_TRUE(warnings().empty());
}

// The slowest GPUs decide: a start without them, or with others, times FP8 anew.
TEST(PlannedGemms, auto_gemms_are_timed_anew_on_gpus_of_other_kinds) {
  const GpuProperties a100{.num_multiprocessors = 108, .capability = 80}, h100{},
      part_of_h100{.num_multiprocessors = 32};
  JobFacts facts = each_sees_its_own(2, 2);
  const auto kept_by = [&](const GpuProperties& first, const GpuProperties& second, const std::string& kinds) {
    facts[0].gpu = first;
    facts[1].gpu = second;
    for (RankFacts& rank : facts) {
      rank.kept_gemm = GemmFormat::kFp8;
      rank.kept_gpus = kinds;
    }
    forget_gemm_of_other_gpus(facts);
    EXPECT_EQ(facts[0].kept_gemm, facts[1].kept_gemm);
    EXPECT_EQ(facts[1].kept_gpus, kinds) << "to tell people";
    return facts[0].kept_gemm.has_value();
  };
  EXPECT_TRUE(kept_by(h100, h100, kinds_of({h100})));
  EXPECT_TRUE(kept_by(h100, a100, kinds_of({a100, h100})));
  EXPECT_FALSE(kept_by(h100, h100, kinds_of({a100})));
  EXPECT_FALSE(kept_by(h100, h100, kinds_of({part_of_h100})));
  EXPECT_FALSE(kept_by(h100, h100, kinds_of({a100, h100}))) << "the slower ones are gone";
  EXPECT_FALSE(kept_by(h100, a100, kinds_of({h100}))) << "slower ones have come";
  EXPECT_FALSE(kept_by(h100, h100, "")) << "an older program's folder";
}

TEST(PlannedGemms, the_plan_says_that_auto_gemms_were_timed_anew) {
  Config config = config_with(GemmFormat::kAuto, 2);
  JobFacts facts = each_sees_its_own(2, 2);
  for (const double speedup : {1.4, 0.9}) {
    for (RankFacts& rank : facts) {
      rank.gpu = GpuProperties{};
      rank.fp8_speedup = speedup;
      rank.kept_gpus = "8.0 with 108 multiprocessors";
    }
    const JobPlan plan = value_or_throw(plan_job(config, facts));
    EXPECT_EQ(plan.gemm, speedup > 1 ? GemmFormat::kFp8 : GemmFormat::kCompute);
    EXPECT_EQ(plan.gpu_kinds, kinds_of({GpuProperties{}}));
    EXPECT_NE(to_string(plan).find("; timed anew, the last start's GPUs were 8.0 with 108 multiprocessors)"),
              std::string::npos)
        << to_string(plan);
  }
  config.run.device = DeviceChoice::kCpu;
  EXPECT_EQ(value_or_throw(plan_job(config, facts)).gpu_kinds, "");
}

// FP8 on GPUs: refused where it is insisted on and can't be had; auto takes it where every rank gains by it.
TEST(PlannedGemms, fp8_is_planned_by_what_the_slowest_rank_gains) {
  const GpuProperties h200, a100{.capability = 80};
  const auto planned = [](GemmFormat gemm, const std::vector<GpuProperties>& gpus, const std::vector<double>& speedups,
                          Dtype compute = Dtype::kBF16, int seq_len = 64) {
    Config config = config_with(gemm, static_cast<int>(gpus.size()));
    config.precision.compute = compute;
    config.model.seq_len = seq_len;
    config.data.micro_batch = 1;
    JobFacts facts = each_sees_its_own(config.parallel.dp, 1);
    for (size_t rank = 0; rank < facts.size(); ++rank) {
      facts[rank].gpu = gpus[rank];
      if (!speedups.empty()) facts[rank].fp8_speedup = speedups[rank];
    }
    return plan_job(config, facts);
  };
  using enum GemmFormat;
  const auto insisted = planned(kFp8, {h200, h200}, {});
  ASSERT_TRUE(insisted) << insisted.error().message;
  EXPECT_EQ(insisted.value().gemm, kFp8);
  for (const auto& [plan, why] :
       {std::pair{planned(kFp8, {h200, a100}, {}), "that of rank 1 on node node1 has 8.0"},
        {planned(kFp8, {h200}, {}, Dtype::kF32), "precision.compute: bf16, and that is fp32"}}) {
    ASSERT_FALSE(plan) << why;
    EXPECT_EQ(plan.error().code, ExitCode::kUsage);
    EXPECT_NE(plan.error().message.find(why), std::string::npos) << plan.error().message;
  }
  const auto gains = planned(kAuto, {h200, h200}, {1.5, 1.25});
  ASSERT_TRUE(gains) << gains.error().message;
  EXPECT_EQ(gains.value().gemm, kFp8);
  EXPECT_NE(to_string(gains.value()).find("(precision.gemm: auto: 1.25 x as fast, casts counted)"), std::string::npos)
      << to_string(gains.value());
  for (const auto& [plan, why] : {std::pair{planned(kAuto, {h200, h200}, {1.5, 0.9}), "are 0.90 x as fast"},
                                  {planned(kAuto, {h200, a100}, {1.5, 1.5}), "8.0"},
                                  {planned(kAuto, {h200}, {1.5}, Dtype::kF32), "that is fp32"},
                                  {planned(kAuto, {h200}, {1.5}, Dtype::kBF16, 50), "needs multiples of 16"},
                                  {planned(kAuto, {h200}, {}), "are 1.00 x as fast"}}) {
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan.value().gemm, kCompute) << why;
    EXPECT_NE(to_string(plan.value()).find(why), std::string::npos) << to_string(plan.value());
  }
}

}  // namespace
}  // namespace tri
