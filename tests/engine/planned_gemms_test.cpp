// FP8 GEMMs in layers: the plan's messages, and the GPUs and configs that it refuses.
#include <gtest/gtest.h>

#include "lib/engine/job_plan.h"
#include "tests/engine/facts.h"

namespace tri {
namespace {

using namespace test;

// A bf16 model whose dimensions FP8 supports.
Config config_with(GemmFormat gemm, int dp) {
  Config config = config_of({.dp = dp});
  config.precision.compute = Dtype::kBF16;
  config.precision.gemm = gemm;
  config.model.hidden = config.model.ffn_hidden = 256;
  config.model.seq_len = 64;
  return config;
}

TEST(PlannedGemms, the_plan_says_where_layers_multiply_fp8) {
  Config config = config_of({.dp = 1});
  config.precision.compute = Dtype::kBF16;
  config.precision.gemm = GemmFormat::kFp8;
  const JobFacts facts(1);
  const auto text = [&] { return to_string(value_or_throw(plan_job(config, facts))); };
  EXPECT_NE(text().find("gradients e5m2, emulated (precision.gemm: fp8)"), std::string::npos) << text();
  EXPECT_TRUE(value_or_throw(plan_job(config, facts)).warnings.empty());
  config.precision.gemm = GemmFormat::kCompute;
  EXPECT_EQ(text().find("gemms:"), std::string::npos) << text();
}

TEST(PlannedGemms, fp8_is_refused_where_a_gpu_lacks_it) {
  const GpuProperties h200, a100{.capability = 80};
  const auto planned = [](const std::vector<GpuProperties>& gpus, Dtype compute = Dtype::kBF16) {
    Config config = config_with(GemmFormat::kFp8, static_cast<int>(gpus.size()));
    config.precision.compute = compute;
    config.data.micro_batch = 1;
    JobFacts facts = each_sees_its_own(config.parallel.dp, 1);
    for (size_t rank = 0; rank < facts.size(); ++rank) facts[rank].gpu = gpus[rank];
    return plan_job(config, facts);
  };
  const auto possible = planned({h200, h200});
  ASSERT_TRUE(possible) << possible.error().message;
  EXPECT_NE(to_string(possible.value()).find("fast accumulation: forward (precision.gemm: fp8)"), std::string::npos);
  for (const auto& [plan, why] : {std::pair{planned({h200, a100}), "the GPU of rank 1 on node node1 has 8.0"},
                                  {planned({h200}, Dtype::kF32), "precision.compute: bf16, but that is fp32"}}) {
    ASSERT_FALSE(plan) << why;
    EXPECT_EQ(plan.error().code, ExitCode::kUsage);
    EXPECT_NE(plan.error().message.find(why), std::string::npos) << plan.error().message;
  }
}

}  // namespace
}  // namespace tri
