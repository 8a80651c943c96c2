// From a run's folder to the report of its time.
#include <cerrno>
#include <fstream>

#include "io/base/json.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/metrics/metrics_reader.h"
#include "tests/io/temporary_folder.h"
#include "tests/observe/story.h"

namespace tri::test {
namespace {

// Reads the files as a run writes them; a last line that a kill has truncated is ignored.
TEST(EffectiveTime, a_run_folder_is_read_past_torn_lines) {
  const TemporaryFolder folder;
  const std::string run = folder / "";
  const std::string metrics = run + "/metrics.jsonl", events = run + "/events.jsonl";
  const auto bytes = [&] { return static_cast<int64_t>(std::ifstream(metrics, std::ios::ate).tellg()); };
  const auto attempt = [&](const std::string& name, int64_t from, int64_t to) {
    ASSERT_TRUE(begin_metrics(metrics, from));
    const EventLog event_log({.path = events, .attempt = name, .job = "", .world_rank = 0, .host = "node"});
    event_log.append(RunEventKind::kBegin, "");
    event_log.append(RunEventKind::kStart, "", {{"step", from}, {"metrics_bytes", std::max<int64_t>(0, bytes())}});
    MetricsFile file(metrics);
    for (int64_t step = from + 1; step <= to; ++step) {
      StepMetrics line{.step = step, .step_ms = 250};
      line.times.data = 0.125;
      file.step(line);
    }
    file.checkpoint(to - 1, 1000, 0.1, 0.2);
  };
  attempt("a", 0, 5);
  std::ofstream(metrics, std::ios::app) << R"({"step":6,"samples":3,"step_ms":250,"ti)";
  attempt("b", 4, 7);
  std::ofstream(events, std::ios::app) << R"({"time":17638)";
  const auto history = read_events_and_steps(run);
  ASSERT_TRUE(history) << history.error().message;
  ASSERT_EQ(history.value().steps.size(), 2u);
  const AttemptSteps &a = history.value().steps[0], &b = history.value().steps[1];
  ASSERT_EQ(a.steps.size(), 5u);
  ASSERT_EQ(b.steps.size(), 3u);
  EXPECT_EQ(a.newest_checkpoint, 4);
  EXPECT_EQ(b.newest_checkpoint, 6);
  EXPECT_EQ(b.steps.front().step, 5);
  EXPECT_NEAR(b.steps.front().seconds, 0.25, 1e-9);
  EXPECT_NEAR(b.steps.front().data_seconds, 0.125, 1e-9);
  EXPECT_GT(b.steps.front().time, 1.7e9);
  const EffectiveTime time = effective_time(history.value()).value();
  expect_partition(time);
  EXPECT_EQ(time.lost_steps, 1);
  MetricsReader curve(metrics);
  ASSERT_TRUE(curve.poll());
  EXPECT_EQ(static_cast<int64_t>(curve.metrics().lost.size()), time.lost_steps) << "the report's curve agrees";
  EXPECT_EQ(static_cast<int64_t>(curve.metrics().steps.size()), time.kept_steps);
  EXPECT_EQ(read_events_and_steps(folder / "absent").error().os_error, ENOENT);
}

TEST(EffectiveTime, its_report_fits_a_screen_and_its_json_adds_up) {
  Story story;
  for (int k = 0; k < 40; ++k)
    story.begin(100 * k + 20, {.name = std::to_string(k / 3), .submitted = 100.0 * k + 1, .allocated = 100.0 * k + 10})
        .start(10 * k)
        .steps(20)
        .published()
        .failure();
  const EffectiveTime time = story.time();
  const std::string text = effective_time_text(time);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 40) << text;
  const auto json = nlohmann::json::parse(effective_time_json(time));
  double sum = 0;
  for (const auto& [name, seconds] : json["seconds"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, json["wall_s"].get<double>(), 1e-3);
  EXPECT_EQ(json["seconds"].size(), static_cast<size_t>(kNumWallTimes));
  EXPECT_EQ(json["attempts"].size(), 40u);
  EXPECT_EQ(effective_time_line(time).find('\n'), std::string::npos);
}

TEST(EffectiveTime, every_category_has_a_meaning) {
  for (size_t i = 0; i < wall_time_meanings().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(wall_time_meanings()[i].category), i);
    EXPECT_FALSE(wall_time_meanings()[i].meaning.empty() || wall_time_meanings()[i].google.empty());
  }
}

}  // namespace
}  // namespace tri::test
