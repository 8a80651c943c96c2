// The fit of `trireme bench calibrate` to steps that were measured once.
#include "lib/bench/calibrate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lib/simulate/step_model.h"

namespace tri {
namespace {

// GPT 1.3B with tp 2 on two H200s (2026-11-22, lib/simulate/README.md).
Config config_of(const std::vector<std::string>& changes) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/gpt_1b3.yaml";
  const auto text = read_config_text(path);
  EXPECT_TRUE(text) << text.error().message;
  std::vector<std::string> settings{"parallel.tp=2", "parallel.dp=1", "data.micro_batch=4", "data.global_batch=16"};
  settings.insert(settings.end(), changes.begin(), changes.end());
  auto parsed = parse_config(text.value(), path, settings);
  EXPECT_TRUE(parsed) << parsed.error().message;
  auto resolved = resolve_config(parsed.value(), 2);
  EXPECT_TRUE(resolved) << resolved.error().message;
  return resolved.value();
}

// A latency with the host's own time in it, as single calls on an idle stream measure it, would make short sequences
// half as long again; the fit finds what a full queue pays.
TEST(Calibration, lowers_a_latency_that_no_step_pays) {
  const std::vector<MeasuredStep> halves{{config_of({"data.global_batch=8"}), 0.14763},
                                         {config_of({"model.layers=12"}), 0.15350},
                                         {config_of({"model.seq_len=1024"}), 0.15359}};
  const MeasuredStep whole{config_of({}), 0.29157};
  Cluster cluster;
  cluster.node.ranks = 2;
  cluster.node.start_us = 0;
  cluster.node.gb_per_s = 300;
  cluster.node.latency_us = 200;
  cluster.stragglers = {.share = 0, .slowdown = 0, .jitter = 0};
  fit_constants(halves, cluster);
  EXPECT_LT(cluster.node.latency_us, 100);
  const auto error = [&](const MeasuredStep& step) {
    return predict_step(workload_of(step.config), cluster).seconds / step.seconds - 1;
  };
  for (const MeasuredStep& step : halves) EXPECT_NEAR(error(step), 0, 0.02);
  EXPECT_NEAR(error(whole), 0, 0.03);  // took no part
}

}  // namespace
}  // namespace tri
