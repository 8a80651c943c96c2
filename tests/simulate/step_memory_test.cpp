// The search's estimate of memory against the program's own plan.
#include "lib/simulate/step_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lib/engine/job_plan.h"

namespace tri {
namespace {

Config planned_config(const std::string& preset, int ranks, const std::vector<std::string>& settings) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/" + preset + ".yaml";
  const auto text = read_config_text(path);
  EXPECT_TRUE(text) << text.error().message;
  auto parsed = parse_config(text.value(), path, settings);
  EXPECT_TRUE(parsed) << parsed.error().message;
  auto resolved = resolve_config(parsed.value(), ranks);
  EXPECT_TRUE(resolved) << resolved.error().message;
  auto planned = plan_on_paper(resolved.value(), ranks);
  EXPECT_TRUE(planned) << planned.error().message;
  return planned.value();
}

TEST(StepMemory, estimate_is_near_the_programs_own_plan) {
  struct Case {
    const char* preset;
    int ranks;
    std::vector<std::string> settings;
  };
  const std::vector<Case> cases{
      {"megascale_175b", 256, {}},
      {"megascale_175b", 512, {"parallel.recompute=none"}},
      {"megascale_175b", 512, {"parallel.recompute=full", "data.micro_batch=2"}},
      {"megascale_530b", 2240, {}},
      {"llama_8b", 16, {}},
      {"llama_8b", 16, {"parallel.tp=1", "parallel.zero=2", "parallel.recompute=full"}},
      {"gpt_13b", 16, {"parallel.tp=2", "parallel.pp=2", "parallel.chunks=1", "parallel.schedule=1f1b"}},
      {"gpt_1b3", 8, {}},
      {"gpt_13b", 16, {"precision.gemm=fp8", "parallel.recompute=none"}},
      {"gpt_13b", 16, {"precision.gemm=fp8", "parallel.recompute=norms", "parallel.tp=2", "parallel.pp=2"}},
      {"llama_8b", 16, {"precision.gemm=fp8", "parallel.recompute=selective"}},
      // On one machine dp copies into the peers' memory.
      {"llama_8b", 8, {"parallel.tp=1", "parallel.zero=2", "parallel.recompute=norms"}},
      {"llama_8b", 8, {"parallel.tp=1", "parallel.zero=1", "parallel.recompute=full"}},
      {"llama_8b", 8, {"parallel.tp=2", "parallel.zero=2", "parallel.recompute=none"}},
      {"llama_8b", 8, {"parallel.tp=1", "parallel.pp=2", "parallel.recompute=full"}},
      {"llama_1b", 8, {"parallel.tp=1", "parallel.pp=2"}},
      {"llama_1b", 8, {"parallel.tp=1", "parallel.pp=2", "parallel.zero=2", "parallel.recompute=full"}},
      {"gpt2_1558m", 8, {"parallel.zero=2", "data.micro_batch=4"}},
      {"gpt2_1558m", 8, {"parallel.pp=2", "parallel.zero=2"}},
      {"gpt2_124m", 8, {"data.micro_batch=64"}},
  };
  for (const Case& one : cases) {
    const Config config = planned_config(one.preset, one.ranks, one.settings);
    const double plan = static_cast<double>(planned_bytes(config));
    const double estimate = estimate_memory(workload_of(config)).total();
    fmt::print("{:<16} {:>5} ranks: plan {:6.2f} GiB, estimate {:+.1f} %\n", one.preset, one.ranks, plan / (1 << 30),
               100 * (estimate / plan - 1));
    EXPECT_NEAR(estimate / plan, 1, 0.025) << one.preset << " " << one.ranks;
  }
}

}  // namespace
}  // namespace tri
