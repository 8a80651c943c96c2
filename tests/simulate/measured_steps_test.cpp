// Steps of this program that were measured on one and two H100 GPUs and on two and four H200 GPUs on 2026-11-28:
// experts, long sequences with and without cp, and pipelines (lib/bench/measurements/simulator_errors.md). Milliseconds
// of `bench step`.
#include <gtest/gtest.h>

#include "lib/simulate/simulation.h"

namespace tri {
namespace {

struct MeasuredStep {
  std::string what, preset;
  int ranks;
  std::vector<std::string> settings;
  double ms;
  double bound = 0.05;  // of the relative error
  std::string cluster = "h100";
};

// Prints a row of the document's table, and compares the error with the bound.
void expect_predicted(const MeasuredStep& step) {
  const std::string configs = std::string(TRI_SOURCE_DIR) + "/configs/", path = configs + step.preset + ".yaml";
  std::vector<std::string> settings{"cluster.ranks_per_node=8", "parallel.recompute=none", "data.micro_batch=1"};
  settings.insert(settings.end(), step.settings.begin(), step.settings.end());
  const Config config = value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, settings));
  const Simulation simulation =
      value_or_throw(simulate(value_or_throw(resolve_config(config, step.ranks)),
                              value_or_throw(read_cluster(configs + "clusters/" + step.cluster + ".yaml"))));
  const double ms = 1e3 * simulation.step.seconds, error = ms / step.ms - 1;
  fmt::print("| {} | {:.1f} | {:.1f} | {:+.1f} % |\n", step.what, step.ms, ms, 100 * error);
  EXPECT_NEAR(error, 0, step.bound) << step.what;
}

// Qwen3-30B's width, T 4096, 8 microbatches of one sequence a rank.
MeasuredStep experts(int ranks, int layers, const std::string& gemm, double ms) {
  return {fmt::format("experts, ep {}, {} layers, {}", ranks, layers, gemm == "fp8" ? "FP8" : "bf16"),
          "qwen3_30b_a3b",
          ranks,
          {fmt::format("model.layers={}", layers), "model.vocab=32768", "optimizer.clip=0", "precision.gemm=" + gemm,
           fmt::format("data.global_batch={}", 8 * ranks), fmt::format("parallel.dp={}", ranks),
           fmt::format("parallel.ep={}", ranks)},
          ms};
}

TEST(MeasuredSteps, of_experts) {
  expect_predicted(experts(1, 4, "compute", 221.1));
  expect_predicted(experts(1, 4, "fp8", 203.7));
  expect_predicted(experts(2, 8, "compute", 397.6));
  expect_predicted(experts(2, 8, "fp8", 363.5));
}

// Qwen3-30B with 12 layers, T 4096, 64 sequences a step on four H200.
TEST(MeasuredSteps, of_experts_of_four) {
  const auto step = [](const std::string& gemm, int micro_batch, double ms, double bound) {
    return MeasuredStep{"experts, ep 4, 12 layers, " + gemm,
                        "qwen3_30b_a3b",
                        4,
                        {"model.layers=12", "precision.gemm=" + gemm, "data.global_batch=64",
                         fmt::format("data.micro_batch={}", micro_batch), "parallel.tp=1", "parallel.pp=1",
                         "parallel.dp=4", "parallel.ep=4"},
                        ms,
                        bound,
                        "h200"};
  };
  expect_predicted(step("compute", 4, 1147.0, 0.05));
  expect_predicted(step("fp8", 8, 1027.8, 0.08));  // 237 ms of transfers are exposed, 118 predicted
}

// LLaMA 8B's width, 4 layers, vocabulary 32,000, 65,536 tokens a rank.
MeasuredStep sequences(int cp, int length, double ms) {
  return {fmt::format("cp {}, T {}", cp, length),
          "llama_8b",
          cp,
          {"model.layers=4", "model.vocab=32000", fmt::format("model.seq_len={}", length),
           fmt::format("data.global_batch={}", cp * 65536 / length), fmt::format("parallel.cp={}", cp), "parallel.tp=1",
           "parallel.pp=1", "parallel.dp=1", "parallel.zero=1"},
          ms};
}

TEST(MeasuredSteps, of_long_sequences) {
  expect_predicted(sequences(1, 8192, 754.4));
  expect_predicted(sequences(1, 32768, 1111.2));
  expect_predicted(sequences(1, 65536, 1553.2));
  MeasuredStep shortest = sequences(2, 8192, 835.5);
  shortest.bound = 0.07;  // attention with the keys of both ranks takes longer than predicted
  expect_predicted(shortest);
  expect_predicted(sequences(2, 16384, 903.7));
  expect_predicted(sequences(2, 32768, 1156.2));
  MeasuredStep without_waves = sequences(2, 65536, 1733.5);
  without_waves.bound = 0.08;  // measured without waves (hopper_attention_backward.cu): memory-bound
  expect_predicted(without_waves);
  expect_predicted(sequences(2, 131072, 2432.2));
}

// 13B, 8 layers, 16 microbatches of one sequence a step or, with dp 2, a rank.
MeasuredStep of_13b(const std::string& what, const std::vector<std::string>& layout, double ms) {
  MeasuredStep step{"13B, 8 layers, " + what,
                    "gpt_13b",
                    2,
                    {"model.layers=8", "data.global_batch=16", "parallel.zero=1", "parallel.chunks=1",
                     "parallel.schedule=1f1b", "parallel.tp=1", "parallel.pp=1", "parallel.dp=1"},
                    ms,
                    0.055};  // all are 4 to 5 % too fast; on other GPUs 13B with dp 2 and tp 2 is within 1 %
  step.settings.insert(step.settings.end(), layout.begin(), layout.end());
  return step;
}

// LLaMA 8B's width, 12 layers, T 4096, microbatches of one sequence, on H200.
MeasuredStep of_llama(const std::string& what, int microbatches, const std::vector<std::string>& layout, double ms) {
  MeasuredStep step{fmt::format("LLaMA, 12 layers, {}, {} microbatches", what, microbatches),
                    "llama_8b",
                    2,
                    {"model.layers=12", "model.seq_len=4096", fmt::format("data.global_batch={}", microbatches),
                     "parallel.zero=1", "parallel.tp=1", "parallel.pp=2", "parallel.dp=1"},
                    ms};
  step.cluster = "h200";
  step.settings.insert(step.settings.end(), layout.begin(), layout.end());
  return step;
}

TEST(MeasuredSteps, of_few_microbatches) {
  const std::string uneven = "parallel.layers_per_chunk=auto", h1 = "parallel.schedule=zb_h1",
                    v = "parallel.schedule=zb_v", line = "parallel.schedule=1f1b";
  expect_predicted(of_llama("1f1b, even", 4, {line}, 383.4));
  expect_predicted(of_llama("1f1b", 4, {line, uneven}, 351.7));
  expect_predicted(of_llama("zb_h1", 4, {h1, uneven}, 327.9));
  expect_predicted(of_llama("zb_v", 4, {v, "parallel.chunks=2", uneven}, 315.0));
  expect_predicted(of_llama("1f1b, even", 8, {line}, 701.1));
  expect_predicted(of_llama("1f1b", 8, {line, uneven}, 633.1));
  expect_predicted(of_llama("zb_h1", 8, {h1, uneven}, 610.2));
  expect_predicted(of_llama("zb_v", 8, {v, "parallel.chunks=2", uneven}, 605.8));
}

TEST(MeasuredSteps, of_two_stages) {
  expect_predicted(of_13b("1f1b", {"parallel.pp=2"}, 567.7));
  expect_predicted(
      of_13b("zb_h1", {"parallel.pp=2", "parallel.schedule=zb_h1", "parallel.layers_per_chunk=auto"}, 551.5));
  expect_predicted(of_13b("tp 2", {"parallel.tp=2"}, 539.5));
  expect_predicted(of_13b("dp 2", {"parallel.dp=2"}, 504.5));
}

}  // namespace
}  // namespace tri
