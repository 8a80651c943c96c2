#include "lib/observe/metrics/metrics_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "lib/observe/metrics/metrics.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::string step_line(int64_t step, double loss) {
  StepMetrics m{.step = step, .tokens = 100 * step, .loss = loss, .step_ms = 250, .tokens_per_s = 400};
  m.mfu = 0.5;
  m.times = {.compute = 0.2, .dp = 0.05};
  const std::string object = json_line(m);
  return object.substr(0, object.size() - 1) + ",\"time\":" + std::to_string(1000 + step) + "}";
}

std::vector<int64_t> steps_of(const std::vector<StepRecord>& records) {
  std::vector<int64_t> steps;
  for (const StepRecord& record : records) steps.push_back(record.step);
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(LastStep, is_read_from_the_end_of_the_file_and_of_the_newest_attempt) {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  EXPECT_EQ(last_step_in(path, 0), std::nullopt);
  std::string text;
  for (int64_t step = 1; step <= 5000; ++step) text += step_line(step, 2) + "\n";
  const auto bytes = static_cast<int64_t>(text.size());
  ASSERT_GT(bytes, 512 << 10);
  write_all(path, text + R"({"step":5000,"validation_loss":2})" + "\n" + step_line(5001, 2));
  EXPECT_EQ(last_step_in(path, 0), 5000) << "of a whole line";
  EXPECT_EQ(last_step_in(path, bytes), std::nullopt) << "of an attempt that has done no step";
  EXPECT_EQ(last_step_in(path, 2 * bytes), std::nullopt) << "the file is shorter";
}

TEST(RunMetrics, reads_what_metrics_file_writes) {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path);
    StepMetrics m{.step = 1, .samples = 8, .tokens = 1024, .loss = 2.5, .grad_norm = 0.75, .learning_rate = 1e-4};
    m.step_ms = 125, m.tokens_per_s = 8192, m.tflops_per_rank = 3.5, m.mfu = 0.25, m.imbalance = 0.125;
    m.times = {.compute = 0.1,
               .tp = 0.002,
               .cp = 0.009,
               .ep = 0.001,
               .pp = 0.003,
               .dp = 0.004,
               .bubble = 0.005,
               .optimizer = 0.006,
               .data = 0.007,
               .other = 0.008};
    m.gpu = GpuSensors{.sm_mhz = 1470, .celsius = 61, .milliwatts = 690100, .memory_bytes = 1ull << 36};
    file.step(m);
    file.evaluation(1, 2.75);
    file.checkpoint(1, 4096, 0.5, 3);
    file.not_finite(2, {"pp0 dp1 tp0", "pp1 dp1 tp0"}, 1);
  }
  MetricsReader reader(path);
  ASSERT_TRUE(reader.poll());
  const RunMetrics& metrics = reader.metrics();
  ASSERT_EQ(metrics.steps.size(), 1u);
  const StepRecord& step = metrics.steps[0];
  EXPECT_EQ(step.step, 1);
  EXPECT_EQ(step.tokens, 1024);
  EXPECT_EQ(step.loss, 2.5);
  EXPECT_EQ(step.grad_norm, 0.75);
  EXPECT_EQ(step.learning_rate, 1e-4);
  EXPECT_EQ(step.step_ms, 125);
  EXPECT_EQ(step.tokens_per_s, 8192);
  EXPECT_EQ(step.tflops_per_rank, 3.5);
  EXPECT_EQ(step.mfu, 0.25);
  EXPECT_EQ(step.imbalance, 0.125);
  EXPECT_GT(step.time, 1.7e9);
  const std::array<double, StepTimes::kKinds> expected = {100, 2, 9, 1, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(step.times_ms, expected);
  EXPECT_EQ(step.gpu_mhz, 1470);
  EXPECT_EQ(step.gpu_watts, 690.1);
  EXPECT_EQ(step.gpu_celsius, 61);
  EXPECT_EQ(step.gpu_memory_bytes, 1ll << 36);
  ASSERT_EQ(metrics.evaluations.size(), 1u);
  EXPECT_EQ(metrics.evaluations[0].loss, 2.75);
  ASSERT_EQ(metrics.checkpoints.size(), 1u);
  EXPECT_EQ(metrics.checkpoints[0].bytes, 4096);
  EXPECT_EQ(metrics.checkpoints[0].stall_seconds, 0.5);
  EXPECT_EQ(metrics.checkpoints[0].seconds, 3);
  ASSERT_EQ(metrics.not_finite.size(), 1u);
  EXPECT_EQ(metrics.not_finite[0].places, "pp0 dp1 tp0, pp1 dp1 tp0");
  EXPECT_EQ(metrics.strange_lines, 0);
}

TEST(RunMetrics, what_is_not_finite_or_absent_is_unknown) {
  RunMetrics metrics;
  metrics.take(step_line(1, NAN));
  metrics.take(R"({"step":2,"step_ms":10,"time":5})");
  ASSERT_EQ(metrics.steps.size(), 2u);
  EXPECT_TRUE(std::isnan(metrics.steps[0].loss));
  EXPECT_TRUE(std::isnan(metrics.steps[1].mfu) && std::isnan(metrics.steps[1].imbalance));
  EXPECT_EQ(metrics.steps[1].step_ms, 10);
}

TEST(RunMetrics, a_step_without_targets_has_times_and_no_loss) {
  RunMetrics metrics;
  const std::string skipped = json_line({.step = 2, .no_targets = true, .loss = NAN, .step_ms = 10});
  metrics.take(skipped);
  EXPECT_EQ(metrics.last_with_targets(), nullptr);
  metrics.take(step_line(1, 2.5));
  metrics.take(skipped);
  ASSERT_EQ(metrics.steps.size(), 2u);
  EXPECT_TRUE(metrics.steps[1].no_targets);
  EXPECT_TRUE(std::isnan(metrics.steps[1].loss));
  EXPECT_EQ(metrics.steps[1].step_ms, 10);
  EXPECT_EQ(metrics.last_with_targets()->loss, 2.5);
}

TEST(RunMetrics, evaluations_by_name_are_apart_from_the_others) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path);
    file.evaluation(4, 2.75);
    file.evaluation(4, {{"web", 2.5}, {"code", NAN}});
    file.evaluation(8, {{"web", 2.25}, {"code", 1.5}});
  }
  MetricsReader reader(path);
  ASSERT_TRUE(reader.poll());
  RunMetrics metrics = reader.metrics();
  EXPECT_EQ(metrics.evaluations.size(), 1u);
  ASSERT_EQ(metrics.named_evaluations.size(), 2u);
  EXPECT_EQ(metrics.named_evaluations[0].losses[1], (std::pair<std::string, double>("web", 2.5)));
  EXPECT_TRUE(std::isnan(metrics.named_evaluations[0].losses[0].second));
  EXPECT_EQ(metrics.named_evaluations[1].step, 8);
  metrics.take(R"({"restart":1,"step":6,"lost_steps":2,"time":1100})");
  EXPECT_EQ(metrics.named_evaluations.size(), 1u);
  EXPECT_EQ(metrics.strange_lines, 0);
}

TEST(RunMetrics, a_restart_undoes_the_steps_behind_it) {
  RunMetrics metrics;
  for (int step = 1; step <= 6; ++step) metrics.take(step_line(step, step));
  metrics.take(R"({"step":6,"validation_loss":3.5,"time":1006.5})");
  metrics.take(R"({"restart":1,"step":4,"lost_steps":2,"time":1100})");
  EXPECT_EQ(steps_of(metrics.steps), (Steps{1, 2, 3, 4})) << "before any step was done again";
  EXPECT_TRUE(metrics.evaluations.empty());
  metrics.take(step_line(5, 50));
  EXPECT_EQ(steps_of(metrics.steps), (Steps{1, 2, 3, 4, 5}));
  EXPECT_EQ(steps_of(metrics.lost), (Steps{5, 6}));
  EXPECT_EQ(metrics.steps.back().loss, 50);
  EXPECT_EQ(metrics.steps.back().start, 1);
  EXPECT_EQ(metrics.lost.back().start, 0);
  ASSERT_EQ(metrics.restarts.size(), 1u);
  EXPECT_EQ(metrics.restarts[0].lost_steps, 2);
}

TEST(RunMetrics, a_step_that_is_there_already_undoes_those_from_it_on_without_a_word_of_a_restart) {
  RunMetrics metrics;
  for (const int step : {1, 2, 3, 4, 2, 3}) metrics.take(step_line(step, step));
  EXPECT_EQ(steps_of(metrics.steps), (Steps{1, 2, 3}));
  EXPECT_EQ(steps_of(metrics.lost), (Steps{2, 3, 4}));
}

TEST(RunMetrics, strange_lines_are_counted_and_passed_over) {
  RunMetrics metrics;
  for (const char* line :
       {"", "not json", "{\"step\":1,\"step_ms\":2", "[1]", "{}", "{\"step\":-5,\"step_ms\":1}",
        "{\"validation_loss\":\"x\",\"step\":1}", "{\"restart\":{}}", "{\"checkpoint_bytes\":1e300}"})
    metrics.take(line);
  metrics.take(step_line(1, 1));
  EXPECT_EQ(steps_of(metrics.steps), (Steps{1}));
  EXPECT_EQ(metrics.strange_lines, 4);
}

TEST(MetricsReader, takes_each_whole_line_once_as_the_file_grows) {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsReader reader(path);
  ASSERT_TRUE(reader.poll());  // the file does not exist yet
  EXPECT_TRUE(reader.metrics().steps.empty());
  const std::string text = step_line(1, 1) + "\n" + step_line(2, 2) + "\n" + step_line(3, 3) + "\n";
  for (size_t at = 0; at < text.size(); at += 37) {
    std::ofstream(path, std::ios::app) << text.substr(at, 37);
    ASSERT_TRUE(reader.poll());
    const auto whole =
        static_cast<size_t>(std::count(text.begin(), text.begin() + std::min(at + 37, text.size()), '\n'));
    ASSERT_EQ(reader.metrics().steps.size(), whole);
  }
  EXPECT_EQ(reader.metrics().strange_lines, 0);
}

TEST(MetricsReader, lines_of_a_newer_release_are_refused) {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsFile(path).evaluation(1, 2.5);
  const std::string own = read_all(path), field = "\"schema\":1,";
  ASSERT_NE(own.find(field), own.npos) << own;
  std::string newer = own;
  newer.replace(newer.find(field), field.size(), "\"schema\":2,");
  write_all(path, step_line(1, 1) + "\n" + own + newer);
  MetricsReader reader(path);
  const auto read = reader.poll();
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find(path + ": a newer release of Trireme wrote it (schema 2)"), std::string::npos)
      << read.error().message;
  EXPECT_EQ(steps_of(reader.metrics().steps), (Steps{1}));
  EXPECT_EQ(reader.metrics().evaluations.size(), 1u);
  EXPECT_FALSE(begin_metrics(path, 2)) << "a start does not append to it";
}

TEST(MetricsReader, a_torn_last_line_waits_and_a_shorter_file_is_reread) {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  write_all(path, step_line(1, 1) + "\n" + step_line(2, 2).substr(0, 20));
  MetricsReader reader(path);
  ASSERT_TRUE(reader.poll());
  EXPECT_EQ(steps_of(reader.metrics().steps), (Steps{1}));
  write_all(path, step_line(7, 1) + "\n");  // as long as what was read from the previous file
  ASSERT_TRUE(reader.poll());
  write_all(path, "");
  ASSERT_TRUE(reader.poll());
  EXPECT_TRUE(reader.metrics().steps.empty());
}

TEST(MetricsReader, lines_longer_than_what_is_read_at_once_are_whole) {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::ofstream file(path);
  file << R"({"step":1,"not_finite":[")" << std::string(9 << 20, 'x') << R"("],"skipped_steps":0,"time":1})" << '\n'
       << step_line(2, 2) << '\n';
  file.close();
  MetricsReader reader(path);
  ASSERT_TRUE(reader.poll());
  ASSERT_EQ(reader.metrics().not_finite.size(), 1u);
  EXPECT_EQ(reader.metrics().not_finite[0].places.size(), size_t{9} << 20);
  EXPECT_EQ(steps_of(reader.metrics().steps), (Steps{2}));
}

}  // namespace
}  // namespace tri
