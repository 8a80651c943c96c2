#include "lib/observe/metrics/exporters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "lib/observe/metrics/prometheus.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

// Returns samples by name and labels. Checks the format's rules: each metric has its help and type before its samples.
std::map<std::string, double> samples_of(const std::string& text) {
  std::map<std::string, double> samples;
  std::set<std::string> helped, typed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, what, name;
    if (line.starts_with("# ")) {
      words >> hash >> what >> name;
      EXPECT_TRUE((what == "HELP" ? helped : typed).insert(name).second) << line;
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string series = line.substr(0, space);
    name = series.substr(0, series.find('{'));
    EXPECT_TRUE(helped.count(name) && typed.count(name)) << line;
    EXPECT_TRUE(samples.emplace(series, std::strtod(line.c_str() + space, nullptr)).second) << line;
  }
  return samples;
}

StepMetrics metrics_of(int64_t step, double loss) {
  StepMetrics m{.step = step,
                .loss = loss,
                .grad_norm = 0.5,
                .learning_rate = 1e-3,
                .step_ms = 500,
                .tokens_per_s = 2000,
                .tflops_per_rank = 400,
                .mfu = 0.4};
  m.times.compute = 0.4;
  m.times.tp = 0.1;
  m.data_bytes = 100;
  return m;
}

TEST(Prometheus, names_have_base_units_and_values_their_digits) {
  PrometheusFigures figures{.labels = {{"run", "a\"b\\c\nd"}}, .steps_of_run = 300};
  auto samples = samples_of(prometheus_text(figures));
  EXPECT_EQ(samples.at("trireme_run_info{run=\"a\\\"b\\\\c\\nd\"}"), 1);
  EXPECT_EQ(samples.count("trireme_loss_nats"), 0u) << "before the first step";
  EXPECT_EQ(prometheus_text(figures).find("expert"), std::string::npos) << "the model is dense";
  figures.last = metrics_of(7, 1.23456789);
  samples = samples_of(prometheus_text(figures));
  EXPECT_EQ(samples.at("trireme_loss_nats"), 1.23456789);
  EXPECT_EQ(samples.at("trireme_step_duration_seconds"), 0.5);
  EXPECT_EQ(samples.at("trireme_model_flops_per_second"), 4e14);
  EXPECT_EQ(samples.at("trireme_mfu_ratio"), 0.4);
  EXPECT_EQ(samples.count("trireme_gpu_power_watts"), 0u) << "unknown";
  EXPECT_EQ(samples.count("trireme_dp_imbalance_ratio"), 0u) << "without documents";
  figures.last.imbalance = 0.125;
  EXPECT_EQ(samples_of(prometheus_text(figures)).at("trireme_dp_imbalance_ratio"), 0.125);
  EXPECT_TRUE(std::ranges::count(scalars_of(figures.last), Scalars::value_type("speed/imbalance", 0.125)) == 1);
  figures.last.gpu = GpuSensors{.sm_mhz = 1470, .celsius = 61, .milliwatts = 690000, .memory_bytes = 1 << 30};
  samples = samples_of(prometheus_text(figures));
  EXPECT_EQ(samples.at("trireme_gpu_clock_hertz"), 1.47e9);
  EXPECT_EQ(samples.at("trireme_gpu_power_watts"), 690);
  EXPECT_EQ(samples.at("trireme_gpu_temperature_celsius"), 61);
  EXPECT_EQ(samples.at("trireme_gpu_memory_used_bytes"), 1 << 30);
  figures.last = metrics_of(7, INFINITY);
  EXPECT_NE(prometheus_text(figures).find("trireme_loss_nats +Inf\n"), std::string::npos);
  figures.last.no_targets = true;
  samples = samples_of(prometheus_text(figures));
  EXPECT_EQ(samples.count("trireme_loss_nats") + samples.count("trireme_gradient_norm"), 0u);
  EXPECT_EQ(samples.at("trireme_step_duration_seconds"), 0.5);
  for (const auto& [name, value] : scalars_of(figures.last))
    EXPECT_TRUE(name != "train/loss" && name != "train/gradient_norm");
}

TEST(Exporters, tensorboard_has_the_balance_of_each_layer_of_experts) {
  const Scalars expected{
      {"experts/max_load", 4},           {"experts/dead", 3},         {"experts/entropy", 0.5},
      {"experts_max_load/layer_1", 1.5}, {"experts_dead/layer_1", 0}, {"experts_entropy/layer_1", 0.875},
      {"experts_max_load/layer_2", 4},   {"experts_dead/layer_2", 3}, {"experts_entropy/layer_2", 0.5}};
  EXPECT_EQ(scalars_of({{.layer = 1, .max_load = 1.5, .dead = 0, .entropy = 0.875},
                        {.layer = 2, .max_load = 4, .dead = 3, .entropy = 0.5}}),
            expected);
}

TEST(Exporters, counters_add_up_and_the_file_has_the_last_of_them) {
  const TemporaryFolder folder;
  Config config;
  config.run.dir = folder / "run";
  config.metrics = {.prometheus = "127.0.0.1:0", .prometheus_file = folder / "trireme.prom"};
  {
    Exporters exporters({.config = config, .attempt = "a", .completed = 10, .memory_bytes = 1 << 20});
    exporters.step(metrics_of(11, 2.0));
    exporters.step(metrics_of(12, NAN));
    exporters.evaluation(12, 1.5);
    exporters.evaluation(12, {{"web", 2.5}, {"code", 1.25}});
    exporters.experts(12, {{.layer = 1, .max_load = 1.5, .dead = 0, .entropy = 0.875},
                           {.layer = 2, .max_load = 4, .dead = 3, .entropy = 0.5}});
    exporters.checkpoint(12, 4096, 0.01, 2);
    EXPECT_TRUE(exporters.flush(std::chrono::minutes(1)));
  }
  const auto samples = samples_of(read_all(config.metrics.prometheus_file));
  EXPECT_EQ(samples.at("trireme_step"), 12);
  EXPECT_EQ(samples.at("trireme_steps_total"), 2);
  EXPECT_EQ(samples.at("trireme_tokens_total"), 2000);
  EXPECT_EQ(samples.at("trireme_data_read_bytes_total"), 200);
  EXPECT_EQ(samples.at("trireme_not_finite_steps_total"), 1);
  EXPECT_DOUBLE_EQ(samples.at("trireme_step_time_seconds_total{category=\"tp\"}"), 0.2);
  EXPECT_EQ(samples.at("trireme_validation_loss_nats"), 1.5);
  EXPECT_EQ(samples.at("trireme_validation_loss_by_name_nats{name=\"code\"}"), 1.25);
  EXPECT_EQ(samples.at("trireme_expert_max_load_ratio{layer=\"1\"}"), 1.5);
  EXPECT_EQ(samples.at("trireme_dead_experts{layer=\"2\"}"), 3);
  EXPECT_EQ(samples.at("trireme_expert_entropy_ratio{layer=\"2\"}"), 0.5);
  EXPECT_EQ(samples.at("trireme_checkpoint_step"), 12);
  EXPECT_TRUE(std::filesystem::exists(config.run.dir + "/tensorboard"));
}

TEST(Exporters, exporters_that_are_not_requested_do_not_exist) {
  const TemporaryFolder folder;
  Config config;
  config.run.dir = folder / "run";
  config.metrics.tensorboard = false;
  testing::internal::CaptureStderr();
  Exporters exporters({.config = config, .attempt = "a"});
  exporters.step(metrics_of(1, 2.0));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "no port is open";
  EXPECT_FALSE(std::filesystem::exists(config.run.dir));
}

TEST(Exporters, trouble_is_no_end) {
  const TemporaryFolder folder;
  Config config;
  config.run.dir = "/proc/none";
  config.metrics.prometheus = "127.0.0.1:0";
  testing::internal::CaptureStderr();
  Exporters first({.config = config, .attempt = "a"});
  const std::string log = testing::internal::GetCapturedStderr();
  std::smatch address;
  ASSERT_TRUE(std::regex_search(log, address, std::regex("http://(127\\.0\\.0\\.1:[1-9][0-9]*)/metrics"))) << log;
  config.metrics.prometheus = address[1];  // already in use
  config.metrics.prometheus_file = "/proc/none/trireme.prom";
  testing::internal::CaptureStderr();
  Exporters second({.config = config, .attempt = "a"});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("training continues without this endpoint"), std::string::npos);
  second.step(metrics_of(1, 2.0));
}

}  // namespace
}  // namespace tri
