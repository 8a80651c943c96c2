#include "lib/observe/metrics/metrics.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(Metrics, equal_floats_print_equal_and_different_ones_differ) {
  StepMetrics a{.step = 3, .samples = 96, .tokens = 12288, .loss = 1.2345678f};
  StepMetrics b = a;
  EXPECT_EQ(json_line(a), json_line(b));
  b.loss = std::nextafter(1.2345678f, 2.0f);
  EXPECT_NE(json_line(a), json_line(b));
  const auto object = nlohmann::json::parse(json_line(a));
  for (const char* key : {"step",         "samples",      "tokens",          "loss",    "grad_norm",  "lr",
                          "step_ms",      "tokens_per_s", "tflops_per_rank", "mfu",     "mfu_causal", "compute_ms",
                          "tp_ms",        "cp_ms",        "ep_ms",           "pp_ms",   "dp_ms",      "bubble_ms",
                          "optimizer_ms", "data_ms",      "data_bytes",      "other_ms"})
    EXPECT_TRUE(object.contains(key)) << key;
  EXPECT_EQ(static_cast<float>(object["loss"].get<double>()), 1.2345678f);
  EXPECT_TRUE(object["mfu"].is_null() && object["mfu_causal"].is_null());
  EXPECT_FALSE(object.contains("mfu_fp8")) << "no GEMM is FP8";
  b.mfu_fp8 = 0.5;
  EXPECT_EQ(nlohmann::json::parse(json_line(b))["mfu_fp8"], 0.5);
  EXPECT_FALSE(object.contains("imbalance")) << "without documents";
  b.imbalance = 0.125;
  EXPECT_EQ(nlohmann::json::parse(json_line(b))["imbalance"], 0.125);
  EXPECT_NE(console_line(b, 10, 0).find("  busiest dp +12 %  "), std::string::npos) << console_line(b, 10, 0);
  b.imbalance = 0.004;
  EXPECT_EQ(console_line(b, 10, 0).find("busiest"), std::string::npos);
  EXPECT_EQ(json_line(a).find("gpu_"), std::string::npos) << "on the CPU";
  b.gpu = GpuSensors{.sm_mhz = 1470, .milliwatts = 690100};
  const auto with_gpu = nlohmann::json::parse(json_line(b));
  EXPECT_EQ(with_gpu["gpu_mhz"], 1470);
  EXPECT_EQ(with_gpu["gpu_watts"], 690.1);
  EXPECT_FALSE(with_gpu.contains("gpu_celsius")) << "the driver does not report it";
}

TEST(Metrics, the_parts_of_a_step_add_up_to_it) {
  Timeline::Times measured;
  measured.seconds = {0.48, 0.02, 0.01, 0.01, 0.1, 0.03, 0.05};
  measured.pp_waits = {0.06, 0.001, 0.039};
  const StepTimes times = step_times(measured, 0.004, 0.8, 0.01);
  double sum = 0;
  for (const double part : times.values()) sum += part;
  EXPECT_NEAR(sum, 0.8, 1e-12);
  // Each wait for a neighbour counts as much as a transfer takes.
  EXPECT_NEAR(times.cp, 0.01, 1e-12);
  EXPECT_NEAR(times.pp, 0.004 + 0.001 + 0.004, 1e-12);
  EXPECT_NEAR(times.bubble, 0.1 - times.pp, 1e-12);
  EXPECT_NEAR(times.other, 0.8 - 0.7 - 0.01, 1e-12);
  StepTimes twice = times;
  twice += times;
  EXPECT_NEAR(twice.dp, 2 * times.dp, 1e-12);
  EXPECT_EQ(exposed_text(times), "waits bubble 91.0 ms") << "tp has 2.5 %, dp 3.75 %";
  EXPECT_EQ(exposed_text({}), "");
}

TEST(Metrics, what_is_not_finite_is_null_in_json) {
  StepMetrics metrics{.step = 1, .loss = NAN, .grad_norm = std::numeric_limits<double>::infinity()};
  const auto object = nlohmann::json::parse(json_line(metrics));
  EXPECT_TRUE(object["loss"].is_null());
  EXPECT_TRUE(object["grad_norm"].is_null());
}

TEST(Metrics, a_step_without_targets_has_no_loss) {
  const StepMetrics metrics{.step = 5, .no_targets = true, .loss = NAN, .grad_norm = NAN, .step_ms = 100};
  const auto object = nlohmann::json::parse(json_line(metrics));
  EXPECT_EQ(object["no_targets"], true);
  EXPECT_FALSE(object.contains("loss") || object.contains("grad_norm"));
  EXPECT_EQ(object["step_ms"], 100);
  EXPECT_EQ(console_line(metrics, 100, 1 << 20).find("step   5/100  no targets  lr "), 0u);
}

TEST(Metrics, skipped_steps_have_a_line_that_says_why) {
  const std::string path = testing::TempDir() + "metrics_test.jsonl";
  std::remove(path.c_str());
  {
    MetricsFile file(path);
    file.not_finite(7, {"rank 3 [pp0 dp1 tp1]: gradient of layers/3/norm1/weight and 2 more", "and 5 more ranks"}, 2);
    file.not_finite(8, {}, 0);
    file.spike(9, 2.5, 0.75, 1);
  }
  std::ifstream in(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["step"], 9);
  EXPECT_EQ(lines[2]["spike"], (nlohmann::json{{"loss_limit", 2.5}, {"grad_norm_limit", 0.75}}));
  EXPECT_EQ(lines[2]["skipped_steps"], 1);
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[0]["skipped_steps"], 2);
  EXPECT_EQ(lines[0]["not_finite"][0], "rank 3 [pp0 dp1 tp1]: gradient of layers/3/norm1/weight and 2 more");
  EXPECT_EQ(lines[0]["not_finite"].size(), 2u);
  EXPECT_EQ(lines[1]["not_finite"].size(), 0u);
  EXPECT_EQ(lines[1]["skipped_steps"], 0);
}

TEST(Metrics, numbers_for_people) {
  const StepMetrics metrics{
      .step = 5, .loss = 2.5, .grad_norm = 0.5, .learning_rate = 1e-3, .step_ms = 100, .tokens_per_s = 1e4};
  EXPECT_EQ(console_line(metrics, 100, 1 << 20),
            "step   5/100  loss 2.5000  grad 0.500  lr 1.00e-03  100 ms  10.0k tok/s  1.00 MiB  ETA 9.5 s");
}

// Returns the lines of the files below, without their times.
std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream text(read_all(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line.substr(0, line.find(",\"time\":")));
  return lines;
}

// A start that continues after `completed` steps and does those up to `last`.
void run_steps(const std::string& path, int64_t completed, int64_t last) {
  value_or_throw(begin_metrics(path, completed));
  MetricsFile file(path);
  for (int64_t step = completed + 1; step <= last; ++step) file.step({.step = step});
  file.checkpoint(completed, 1, 0, 0);  // published later than its step
}

TEST(Metrics, restarts_are_marked_in_one_file_that_is_only_appended_to) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  run_steps(path, 0, 5);
  EXPECT_EQ(read_all(path).find("restart"), std::string::npos);  // the first start is not a restart
  const std::vector<std::pair<int64_t, int64_t>> starts = {{3, 4}, {3, 3}, {3, 6}, {0, 1}};
  for (const auto& [completed, last] : starts) {
    const std::string before = read_all(path);
    run_steps(path, completed, last);
    EXPECT_EQ(read_all(path).substr(0, before.size()), before);
  }
  std::vector<std::string> marks;
  for (const std::string& line : lines_of(path))
    if (line.find("restart") != line.npos) marks.push_back(line);
  const std::vector<std::string> expected = {
      R"({"restart":1,"step":3,"lost_steps":2,"schema":1)", R"({"restart":2,"step":3,"lost_steps":1,"schema":1)",
      R"({"restart":3,"step":3,"lost_steps":0,"schema":1)", R"({"restart":4,"step":0,"lost_steps":6,"schema":1)"};
  EXPECT_EQ(marks, expected);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);  // no copies are left
}

TEST(Metrics, a_line_that_a_crash_cut_short_does_not_spoil_the_next_one) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  run_steps(path, 0, 2);
  const std::string whole = read_all(path);
  write_all(path, whole + R"({"step":3,"samples":)");
  run_steps(path, 1, 2);
  EXPECT_EQ(read_all(path).substr(0, whole.size()), whole);
  std::istringstream text(read_all(path));
  for (std::string line; std::getline(text, line);) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(lines_of(path)[3], R"({"restart":1,"step":1,"lost_steps":1,"schema":1)");
  write_all(path, R"({"st)");  // nothing else was ever written: this is not a restart
  run_steps(path, 0, 1);
  EXPECT_EQ(read_all(path).find("restart"), std::string::npos);
}

TEST(Metrics, every_line_has_the_time_at_which_it_was_written) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const double before = now();
  run_steps(path, 0, 1);
  run_steps(path, 1, 2);
  MetricsFile(path).evaluation(2, 1.5);
  const double after = now();
  std::istringstream text(read_all(path));
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines) {
    const double time = nlohmann::json::parse(line).at("time");
    EXPECT_GE(time, before - 1e-3) << line;
    EXPECT_LE(time, after + 1e-3) << line;
  }
  EXPECT_EQ(lines, 6);
}

TEST(Metrics, a_file_that_cannot_be_read_is_an_error) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "metrics.jsonl");
  EXPECT_FALSE(begin_metrics(folder / "metrics.jsonl", 3));
}

}  // namespace
}  // namespace tri
