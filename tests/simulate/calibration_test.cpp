// The fit of `trireme bench calibrate` to steps that were measured once.
#include "lib/bench/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lib/simulate/step_model.h"

namespace tri {
namespace {

// GPT 1.3B with tp 2 on two H200s (2026-11-22, lib/bench/measurements/calibration.md).
Config config_of(const std::vector<std::string>& changes, int tp = 2) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/gpt_1b3.yaml";
  const auto text = read_config_text(path);
  EXPECT_TRUE(text) << text.error().message;
  std::vector<std::string> settings{fmt::format("parallel.tp={}", tp), "parallel.dp=1", "data.micro_batch=4",
                                    "data.global_batch=16"};
  settings.insert(settings.end(), changes.begin(), changes.end());
  auto parsed = parse_config(text.value(), path, settings);
  EXPECT_TRUE(parsed) << parsed.error().message;
  auto resolved = resolve_config(parsed.value(), tp);
  EXPECT_TRUE(resolved) << resolved.error().message;
  return resolved.value();
}

// Returns the H200 as `bench calibrate` knows it before the fit.
Cluster h200() {
  auto read = read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/h200.yaml");
  EXPECT_TRUE(read) << read.error().message;
  Cluster cluster = read.value();
  cluster.node.ranks = 2;
  cluster.node.start_us = 0;
  cluster.node.gb_per_s = 300;
  cluster.stragglers = {.share = 0, .slowdown = 0, .jitter = 0};
  return cluster;
}

double seconds_on(const Cluster& cluster, const Config& config) {
  return predict_step(workload_of(config), cluster).seconds;
}

// A latency that includes the host's time, as measured by single calls on an idle stream, would make short sequences
// half as long again; the fit finds the latency of a full queue.
TEST(Calibration, lowers_a_latency_that_no_step_pays) {
  const std::vector<MeasuredStep> halves{{config_of({"data.global_batch=8"}), 0.14763},
                                         {config_of({"model.layers=12"}), 0.15350},
                                         {config_of({"model.seq_len=1024"}), 0.15359}};
  const MeasuredStep whole{config_of({}), 0.29157};
  for (const KernelRates rates : {KernelRates::kMeasured, KernelRates::kUnknown}) {
    Cluster cluster = h200();
    cluster.node.latency_us = 200;
    fit_constants(halves, rates, cluster);
    EXPECT_LT(cluster.node.latency_us, 100);
    const auto error = [&](const MeasuredStep& step) { return seconds_on(cluster, step.config) / step.seconds - 1; };
    for (const MeasuredStep& step : halves) EXPECT_NEAR(error(step), 0, 0.02);
    EXPECT_NEAR(error(whole), 0, 0.03);  // not part of the fit
  }
}

// Returns the variants of `bench calibrate` with their simulated times.
std::vector<MeasuredStep> steps_on(const Cluster& truth, int tp) {
  std::vector<MeasuredStep> steps;
  for (const std::vector<std::string>& changes : std::vector<std::vector<std::string>>{{"data.global_batch=8"},
                                                                                       {"model.layers=12"},
                                                                                       {"model.seq_len=1024"},
                                                                                       {"data.micro_batch=2"},
                                                                                       {"precision.gemm=fp8"}}) {
    const Config config = config_of(changes, tp);
    steps.push_back({config, seconds_on(truth, config)});
  }
  return steps;
}

// Fitting steps simulated with known constants recovers these constants and predicts another model's steps. With tp a
// latency and a time per layer and microbatch differ in nothing that a step shows.
TEST(Calibration, finds_the_constants_behind_the_steps) {
  Cluster truth = h200();
  truth.software.gemm_share = 0.7;
  truth.software.fp8_gemm_share = 0.55;
  truth.software.layer_us = 40;
  truth.node.latency_us = 9;
  std::vector<MeasuredStep> steps = steps_on(truth, 2);
  Cluster found = h200();
  found.software.gemm_share = 0.5;
  found.software.fp8_gemm_share = 0.9;
  found.node.latency_us = 100;
  fit_constants(steps, KernelRates::kMeasured, found);
  EXPECT_NEAR(found.software.gemm_share, 0.7, 0.01);
  EXPECT_NEAR(found.software.fp8_gemm_share, 0.55, 0.01);
  EXPECT_LT(found.node.latency_us, 30);
  for (const std::string format : {"compute", "fp8"}) {
    const Config wider =
        config_of({"model.hidden=5120", "model.heads=40", "model.layers=8", "precision.gemm=" + format});
    EXPECT_NEAR(seconds_on(found, wider) / seconds_on(truth, wider), 1, 0.01) << format;
  }
  // Without a step in FP8 its rate does not change.
  steps.pop_back();
  found.software.fp8_gemm_share = 0.9;
  fit_constants(steps, KernelRates::kMeasured, found);
  EXPECT_EQ(found.software.fp8_gemm_share, 0.9);
}

TEST(Calibration, finds_the_time_of_a_layer_and_microbatch_without_tp) {
  Cluster truth = h200();
  truth.software.layer_us = 100;  // 9.6 ms a step of 24 layers and 4 microbatches
  Cluster found = h200();
  fit_constants(steps_on(truth, 1), KernelRates::kMeasured, found);
  EXPECT_NEAR(found.software.layer_us, 100, 15);
}

// On CPU ranks that share cores, from constants that are far off: predicts the quick start from its halves.
TEST(Calibration, predicts_the_quick_start_from_its_halves) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/quickstart.yaml";
  const auto quickstart = [&](const std::string& change) {
    const auto text = read_config_text(path);
    auto parsed = parse_config(text.value(), path, {"precision.compute=fp32", "parallel.recompute=none", change});
    EXPECT_TRUE(parsed) << parsed.error().message;
    return resolve_config(parsed.value(), 8).value();
  };
  Cluster start;
  start.device.fp32_tflops = start.device.bf16_tflops = 1;
  start.device.multiprocessors = start.device.tile = 1;
  start.device.memory_gb_per_s = 200;
  start.software.gemm_share = start.software.memory_share = 0.05;
  start.node.workers = 2;
  start.node.latency_us = 400;
  start.stragglers = {.share = 0, .slowdown = 0, .jitter = 0};
  Cluster truth = start;
  truth.software.gemm_share = 0.11;
  truth.software.attention_forward = truth.software.attention_backward = 0.7 * truth.software.gemm_share;
  truth.software.memory_share = 0.02;
  truth.software.layer_us = 600;  // 10 ms a step of 4 layers and 4 microbatches
  truth.node.latency_us = 120;
  const Config whole = quickstart("run.seed=1");
  const auto half = [](const char* key, int value) { return fmt::format("{}={}", key, value / 2); };
  std::vector<MeasuredStep> steps;
  for (const std::string& change :
       {half("data.global_batch", whole.data.global_batch), half("model.layers", whole.model.layers),
        half("model.seq_len", whole.model.seq_len), half("data.micro_batch", whole.data.micro_batch)}) {
    const Config config = quickstart(change);
    steps.push_back({config, seconds_on(truth, config)});
  }
  Cluster found = start;
  EXPECT_GT(std::abs(seconds_on(found, whole) / seconds_on(truth, whole) - 1), 0.1);
  fit_constants(steps, KernelRates::kUnknown, found);
  EXPECT_NEAR(seconds_on(found, whole) / seconds_on(truth, whole), 1, 0.02);
  // If each step is measured 3 % off, in either direction, the fit is not.
  for (unsigned off = 0; off < 16; ++off) {
    std::vector<MeasuredStep> measured = steps;
    for (size_t i = 0; i < measured.size(); ++i) measured[i].seconds *= (off >> i & 1) != 0 ? 1.03 : 0.97;
    found = start;
    fit_constants(measured, KernelRates::kUnknown, found);
    EXPECT_NEAR(seconds_on(found, whole) / seconds_on(truth, whole), 1, 0.06) << off;
  }
}

// Two sequence lengths determine attention's rate and its ramp; one determines the rate; none changes nothing.
TEST(Calibration, finds_attentions_rates_from_its_kernels) {
  Cluster truth = h200();
  truth.software.attention_forward = 0.6;
  truth.software.attention_ramp = 500;
  truth.software.attention_backward = 0.45;
  truth.software.attention_ramp_backward = 1100;
  std::vector<MeasuredStep> steps;
  for (const std::string length : {"2048", "1024"}) {
    const Config config = config_of({"model.seq_len=" + length});
    const LayerTimes times = layer_times(workload_of(config), layers_of_model(config)[0], truth, RingTimes(truth));
    steps.push_back({config, 1, times.forward.attention, times.backward.attention});
  }
  Cluster found = h200();
  ASSERT_TRUE(use_attention(steps, found));
  EXPECT_NEAR(found.software.attention_forward, 0.6, 1e-6);
  EXPECT_NEAR(found.software.attention_ramp, 500, 1e-3);
  EXPECT_NEAR(found.software.attention_backward, 0.45, 1e-6);
  EXPECT_NEAR(found.software.attention_ramp_backward, 1100, 1e-3);
  found = h200();
  found.software.attention_ramp = 500;
  found.software.attention_ramp_backward = 1100;
  steps.pop_back();
  ASSERT_TRUE(use_attention(steps, found));
  EXPECT_NEAR(found.software.attention_forward, 0.6, 1e-6);
  EXPECT_NEAR(found.software.attention_backward, 0.45, 1e-6);
  found = h200();
  EXPECT_FALSE(use_attention({{steps[0].config, 1}}, found));
  EXPECT_EQ(found.software, h200().software);
}

TEST(Calibration, warns_of_one_that_says_little) {
  Cluster cluster = h200();
  cluster.uncertainty = 0.035;
  EXPECT_EQ(warning_of(cluster), "");
  cluster.uncertainty = 0.567;
  EXPECT_NE(warning_of(cluster).find("uncertain by 57 %"), std::string::npos) << warning_of(cluster);
}

}  // namespace
}  // namespace tri
