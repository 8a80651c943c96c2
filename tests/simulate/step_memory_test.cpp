// Compares the search's estimate of memory with the program's own plan.
#include "lib/simulate/step_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lib/engine/job_plan.h"

namespace tri {
namespace {

Cluster cluster_of(const std::string& name) {
  return value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/" + name + ".yaml"));
}

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
      {"llama_8b", 16, {"optimizer.ema=0.999"}},
      {"llama_8b", 16, {"parallel.tp=1", "parallel.zero=2", "parallel.recompute=full"}},
      {"gpt_13b", 16, {"parallel.tp=2", "parallel.pp=2", "parallel.chunks=1", "parallel.schedule=1f1b"}},
      {"gpt_1b3", 8, {}},
      {"gpt_13b", 16, {"precision.gemm=fp8", "parallel.recompute=none"}},
      {"gpt_13b", 16, {"precision.gemm=fp8", "parallel.recompute=norms", "parallel.tp=2", "parallel.pp=2"}},
      {"llama_8b", 16, {"precision.gemm=fp8", "parallel.recompute=selective"}},
      // Layers that multiply bf16 at one end or both.
      {"gpt_13b", 16, {"precision.gemm=fp8", "precision.fp8_first_layers=20", "parallel.recompute=none"}},
      {"gpt_13b",
       16,
       {"precision.gemm=fp8", "precision.fp8_last_layers=39", "parallel.recompute=norms", "parallel.pp=2"}},
      {"llama_8b", 16, {"precision.gemm=fp8", "precision.fp8_first_layers=1", "parallel.recompute=full"}},
      {"gpt_1b3",
       8,
       {"precision.gemm=fp8", "precision.fp8_first_layers=2", "precision.fp8_last_layers=4", "parallel.zero=2"}},
      // FP8 weights have separate buckets.
      {"llama_8b",
       16,
       {"precision.gemm=fp8", "parallel.tp=1", "parallel.zero=2", "parallel.bucket_elements=600000000"}},
      {"gpt_13b", 16, {"precision.gemm=fp8", "parallel.tp=2", "parallel.zero=2", "parallel.bucket_elements=500000000"}},
      {"gpt_1b3", 8, {"precision.gemm=fp8", "parallel.zero=2", "parallel.bucket_elements=2000000000"}},
      {"gpt_1b3", 8, {"precision.gemm=fp8", "parallel.bucket_elements=2000000000"}},
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
      // Parts of sequences: the keys and values of whole ones are gathered.
      {"llama_3_8b_131k", 16, {}},
      {"llama_3_8b_131k", 8, {"parallel.tp=1", "parallel.recompute=selective", "parallel.zero=2"}},
      {"llama_8b", 16, {"parallel.cp=4", "data.micro_batch=4", "parallel.recompute=none"}},
      // Documents: the starts of all microbatches, and the angles of each row.
      {"llama_3_8b", 8, {"data.document_mask=true"}},
      {"llama_3_8b", 16, {"data.document_mask=true", "parallel.tp=1", "parallel.recompute=full"}},
      {"gpt2_124m", 8, {"data.document_mask=true"}},
      // Muon's matrices have separate buckets, one moment and a workspace.
      {"llama_8b", 16, {"optimizer.name=muon"}},
      {"llama_8b", 8, {"optimizer.name=muon", "parallel.tp=1", "parallel.zero=2", "parallel.recompute=full"}},
      {"gpt_13b", 16, {"optimizer.name=muon", "parallel.tp=2", "parallel.pp=2", "optimizer.moments=bf16"}},
      {"gpt2_124m", 1, {"optimizer.name=muon"}},
      // Gradients that wait for the weights', and inputs that are recomputed for them; uneven stages.
      {"gpt_13b", 16, {"parallel.tp=2", "parallel.pp=4", "parallel.schedule=zb_h1", "parallel.recompute=none"}},
      {"llama_8b", 8, {"parallel.tp=1", "parallel.pp=4", "parallel.schedule=zb_h1", "parallel.zero=2"}},
      {"llama_8b", 16, {"parallel.pp=2", "parallel.schedule=zb_h1", "parallel.recompute=full"}},
      {"gpt_13b", 16, {"precision.gemm=fp8", "parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb_h1"}},
      {"mixtral_8x7b", 64, {"parallel.pp=4", "parallel.schedule=zb_h1", "parallel.recompute=full"}},
      {"gpt_13b",
       16,
       {"parallel.tp=2", "parallel.pp=4", "parallel.schedule=zb_v", "parallel.chunks=2", "parallel.recompute=none"}},
      {"llama_8b", 16, {"parallel.pp=2", "parallel.schedule=zb_v", "parallel.chunks=2", "parallel.recompute=full"}},
      {"llama_1b",
       8,
       {"parallel.tp=1", "parallel.pp=2", "parallel.schedule=zb_v", "parallel.chunks=2", "parallel.zero=2"}},
      {"gpt_13b", 24, {"parallel.tp=2", "parallel.pp=3", "parallel.layers_per_chunk=auto"}},
      // Experts, whose memory is that of the rows with parallel.ep_capacity.
      {"qwen3_30b_a3b", 16, {}},
      {"qwen3_30b_a3b", 64, {"parallel.recompute=none"}},
      {"qwen3_30b_a3b", 64, {"parallel.recompute=selective", "parallel.tp=2", "parallel.zero=2"}},
      {"qwen3_30b_a3b", 64, {"parallel.ep=1", "parallel.recompute=norms"}},
      {"mixtral_8x7b", 64, {"parallel.pp=2", "parallel.recompute=none", "parallel.ep_capacity=1.5"}},
  };
  const GpuProperties h200 = gpu_of(cluster_of("h200")), a100 = gpu_of(cluster_of("a100_megascale"));
  for (const Case& one : cases) {
    const Config config = planned_config(one.preset, one.ranks, one.settings);
    for (const GpuProperties& gpu : {h200, a100}) {
      if (gpu.capability < kFp8Capability && config.precision.gemm == GemmFormat::kFp8) continue;
      const double plan = static_cast<double>(planned_bytes(config, gpu));
      const double estimate = estimate_memory(workload_of(config), gpu).total();
      fmt::print("{:<16} {:>5} ranks of sm_{}: plan {:6.2f} GiB, estimate {:+.1f} %\n", one.preset, one.ranks,
                 gpu.capability, plan / (1 << 30), 100 * (estimate / plan - 1));
      EXPECT_NEAR(estimate / plan, 1, 0.015) << one.preset << " " << one.ranks;
    }
  }
}

TEST(StepMemory, gpus_are_those_that_the_cluster_file_describes) {
  const GpuProperties h200 = gpu_of(cluster_of("h200")), a100 = gpu_of(cluster_of("a100_megascale"));
  EXPECT_EQ(h200.capability, 90);
  EXPECT_EQ(h200.num_multiprocessors, 132);
  EXPECT_TRUE(h200.has_hopper_attention);
  EXPECT_EQ(a100.capability, 80);
  EXPECT_EQ(a100.num_multiprocessors, 108);
  EXPECT_FALSE(a100.has_hopper_attention || a100.has_clusters);
  Cluster half = cluster_of("h200");
  half.device.multiprocessors = 66;
  EXPECT_EQ(gpu_of(half).num_multiprocessors, 66);
}

// Before Hopper the backward pass of this attention uses cuDNN, which stores the gradients of the scores.
TEST(StepMemory, a_plan_has_the_scratch_of_the_clusters_gpus) {
  const Config config = planned_config("gpt_1b3", 8, {});
  const auto bytes = [&](const char* cluster) { return planned_bytes(config, gpu_of(cluster_of(cluster))); };
  const int64_t heads = config.model.heads / config.parallel.tp, seq_len = config.model.seq_len;
  const int64_t scores = heads * config.data.micro_batch * seq_len * seq_len * 2;
  EXPECT_GT(bytes("a100_megascale"), bytes("h200") + scores / 2);
  EXPECT_LT(bytes("a100_megascale"), bytes("h200") + 2 * scores);
  EXPECT_EQ(bytes("h100_nemo"), bytes("h200"));
  Config on_cpu = config;
  on_cpu.run.device = DeviceChoice::kCpu;
  EXPECT_EQ(planned_bytes(on_cpu, gpu_of(cluster_of("a100_megascale"))),
            planned_bytes(on_cpu, gpu_of(cluster_of("h200"))));
}

}  // namespace
}  // namespace tri
