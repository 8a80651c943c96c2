#include "lib/report/run_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/io/temporary_folder.h"
#include "tests/report/synthetic/synthetic_run.h"

namespace tri {
namespace {

std::string fact(const RunData& run, const std::string& label) {
  for (const RunFact& fact : run_facts(run))
    if (fact.label == label) return fact.value;
  return "(no such fact)";
}

TEST(RunData, of_a_run_with_restarts) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.steps = 300, .restarts = 2, .lost_steps = 7});
  const auto read = read_run_data(folder / "run");
  ASSERT_TRUE(read) << read.error().message;
  const RunData& run = read.value();
  EXPECT_EQ(run.name, "synthetic");
  ASSERT_EQ(run.metrics.steps.size(), 300u);
  for (size_t i = 0; i < 300; ++i) ASSERT_EQ(run.metrics.steps[i].step, static_cast<int64_t>(i) + 1);
  EXPECT_EQ(run.metrics.lost.size(), 14u);
  EXPECT_EQ(run.metrics.restarts.size(), 2u);
  ASSERT_TRUE(run.time);
  EXPECT_EQ(run.time->attempts.size(), 3u);
  EXPECT_EQ(run.time->lost_steps, 14);
  ASSERT_EQ(run.changes.size(), 1u);
  EXPECT_EQ(run.changes[0].name, "lr.peak");
  EXPECT_EQ(run.changes[0].before, "0.0003");
  EXPECT_EQ(run.changes[0].after, "0.00015");
  EXPECT_EQ(run.changes[0].start, 1);
  ASSERT_EQ(run.incidents.size(), 4u) << "a failure and its consequence, twice";
  EXPECT_EQ(run.incidents[0].kind, "failure");
  EXPECT_NE(run.incidents[0].text.find("node0007"), std::string::npos);
  EXPECT_EQ(run.incidents[0].step, 100);
  EXPECT_EQ(run.incidents[1].text, "1 rank failed as a consequence");
  EXPECT_TRUE(run.remarks.empty());
  EXPECT_EQ(fact(run, "State"), "step 300 of 300; done");
  EXPECT_EQ(fact(run, "Layout"), "8 ranks: tp 2, pp 2, dp 2, interleaved, chunks 6, zero 2");
  EXPECT_NE(fact(run, "Model").find("175B parameters"), std::string::npos) << fact(run, "Model");
  EXPECT_NE(fact(run, "Machines").find("peak 989 TFLOP/s"), std::string::npos) << fact(run, "Machines");
  EXPECT_EQ(fact(run, "Version"), "0.1.0, commit 0123456789ab");
}

// Events of a supervised run of two attempts: a rank is killed after step 2, the run is finished by the second.
void write_supervised_run(const std::string& dir) {
  std::string metrics;
  int64_t second = 0;  // byte offset of the second attempt's lines
  for (const auto& [step, when] : {std::pair{1, 4}, {2, 8}, {0, 0}, {2, 20}, {3, 24}, {4, 28}}) {
    if (step == 0) second = std::ssize(metrics);
    metrics += step == 0 ? "{\"restart\":1,\"step\":1,\"lost_steps\":1,\"time\":1763800014}\n"
                         : fmt::format("{{\"step\":{},\"loss\":2,\"step_ms\":4000,\"tokens_per_s\":{},\"time\":{}}}\n",
                                       step, 100 * step, 1763800000 + when);
  }
  std::string events;
  double time = 1763800000;
  const auto append = [&](RunEvent event, const std::string& attempt) {
    event.time = time++;
    event.attempt = attempt;
    events += to_json(event) + "\n";
  };
  append({.kind = RunEventKind::kBegin, .world_rank = 0}, "a");
  append({.kind = RunEventKind::kStart,
          .world_rank = 0,
          .fields = {{"steps", int64_t{4}}, {"ranks", int64_t{8}}, {"metrics_bytes", int64_t{0}}}},
         "a");
  time = 1763800010;
  append({.kind = RunEventKind::kFailure,
          .world_rank = 5,
          .host = "node1",
          .text = "process 7 was killed by signal 9 (SIGKILL)",
          .fields = {{"code", int64_t{5}}}},
         "a");
  append({.kind = RunEventKind::kDecision,
          .text = "it is the first such fault on this node",
          .fields = {{"action", std::string("retry")}, {"cause", std::string("death by signal")}}},
         "a");
  append({.kind = RunEventKind::kBegin, .world_rank = 0}, "b");
  append({.kind = RunEventKind::kStart,
          .world_rank = 0,
          .fields = {{"step", int64_t{1}},
                     {"steps", int64_t{4}},
                     {"metrics_bytes", second},
                     {"before.lr.peak", std::string("1")},
                     {"after.lr.peak", std::string("2")}}},
         "b");
  time = 1763800030;
  append({.kind = RunEventKind::kEnd, .world_rank = 0, .fields = {{"code", int64_t{0}}}}, "b");
  append({.kind = RunEventKind::kDecision, .text = "finished", .fields = {{"action", std::string("done")}}}, "b");
  write_all(dir + "/events.jsonl", events);
  write_all(dir + "/metrics.jsonl", metrics);
  write_all(dir + "/log.txt",
            "2025-11-22 08:26:50 step 2: sample\n---\nIn the\nbeginning\n---\n2025 step 4: sample\n---\nand\n---\n");
}

TEST(RunData, says_what_happened_with_actions_and_without_alarm_at_a_normal_end) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  write_supervised_run(folder / "run");
  const RunData run = value_or_throw(read_run_data(folder / "run"));
  ASSERT_EQ(run.incidents.size(), 2u) << "the end of a finished run is no incident";
  EXPECT_TRUE(run.incidents[0].alarm);
  EXPECT_EQ(run.incidents[0].text, "rank 5 on node1: process 7 was killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(run.incidents[1].alarm);
  EXPECT_EQ(run.incidents[1].text,
            "another attempt on the same nodes after death by signal: it is the first such fault on this node");
  const auto story = run_story(run);
  ASSERT_EQ(story.size(), 2u);
  EXPECT_EQ(story[0].text, "step 4 of 4; done");
  EXPECT_FALSE(story[0].alarm);
  EXPECT_TRUE(story[1].text.starts_with(
      "1 failure: rank 5 on node1: process 7 was killed by signal 9 (SIGKILL), after step 2; "))
      << story[1].text;
  EXPECT_TRUE(story[1].text.ends_with(" and 1 step lost")) << story[1].text;
  EXPECT_TRUE(story[1].alarm);
  ASSERT_EQ(run.samples.size(), 2u);
  EXPECT_EQ(run.samples[0].step, 2);
  EXPECT_EQ(run.samples[0].text, "In the\nbeginning");
  EXPECT_EQ(run.samples[1].text, "and");
  ASSERT_EQ(run.changes.size(), 1u);
  EXPECT_EQ(run.changes[0].step, 1);
  const RecentSpeed speed = recent_speed(run.metrics);
  EXPECT_EQ(speed.steps, 4u);
  EXPECT_EQ(speed.tokens_low, 100);
  EXPECT_EQ(speed.tokens_high, 400);
}

TEST(RunData, the_speed_shows_the_imbalance_of_documents) {
  RunData run{.dir = "/runs/documents", .name = "documents"};
  for (const int step : {1, 2, 3})
    run.metrics.take(fmt::format(R"({{"step":{},"step_ms":100,"imbalance":{},"time":5}})", step, 0.1 * step));
  const std::vector<RunFact> facts = run_facts(run);
  const auto speed = std::ranges::find(facts, "Speed", &RunFact::label);
  ASSERT_NE(speed, facts.end());
  EXPECT_NE(speed->value.find(", busiest dp +20 %; medians of the last 3 steps"), std::string::npos) << speed->value;
}

TEST(RunData, the_data_are_the_sources_or_the_stages) {
  RunData run{.dir = "/runs/stages", .name = "stages"};
  run.config = {{"data.sources", "[a, b]"}, {"data.stages", "[]"}, {"data.global_batch", "8"}};
  EXPECT_EQ(fact(run, "Data"), "[a, b], global batch 8");
  run.config = {{"data.sources", "[]"}, {"data.stages", "[{sources: [a]}]"}, {"data.global_batch", "8"}};
  EXPECT_EQ(fact(run, "Data"), "stages [{sources: [a]}], global batch 8");
  run.metrics.take(R"({"step":6,"validation":{"web":2.5,"code":1.25},"time":5})");
  EXPECT_EQ(fact(run, "Losses by name"), "code 1.2500, web 2.5000 at step 6");
}

TEST(RunData, says_that_nothing_happened) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.steps = 60, .restarts = 0, .slow_rank = -1});
  const auto story = run_story(value_or_throw(read_run_data(folder / "run")));
  ASSERT_EQ(story.size(), 2u);
  EXPECT_EQ(story[1].text, "no failure, hang or slow rank is recorded");
}

TEST(RunData, each_file_may_be_absent) {
  for (const std::string missing : {"metrics.jsonl", "events.jsonl", "resolved.yaml", "ranks.h5"}) {
    TemporaryFolder folder;
    write_synthetic_run(folder / "run", {.steps = 60, .restarts = 1});
    std::filesystem::remove(folder / ("run/" + missing));
    const auto run = read_run_data(folder / "run");
    ASSERT_TRUE(run) << missing << ": " << run.error().message;
    EXPECT_EQ(run.value().metrics.steps.empty(), missing == "metrics.jsonl");
    EXPECT_EQ(run.value().time.has_value(), missing != "events.jsonl");
    EXPECT_EQ(run.value().config.empty(), missing == "resolved.yaml");
    EXPECT_EQ(run.value().heat.has_value(), missing != "ranks.h5");
    EXPECT_FALSE(run_facts(run.value()).empty());
  }
}

TEST(RunData, damaged_files_leave_a_remark_and_the_rest) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.steps = 60});
  write_all(folder / "run/ranks.h5", "no HDF5");
  write_all(folder / "run/resolved.yaml", "a: [b");
  write_all(folder / "run/config.yaml", "run: {name: asked}");
  write_all(folder / "run/metrics.jsonl", read_all(folder / "run/metrics.jsonl") + "garbage\n{\"step\":61,\"step_");
  const auto run = read_run_data(folder / "run");
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run.value().metrics.steps.size(), 60u);
  EXPECT_EQ(run.value().remarks.size(), 3u) << "ranks.h5, resolved.yaml, a line of metrics.jsonl";
  EXPECT_EQ(run.value().name, "asked");
}

TEST(RunData, of_a_run_that_has_done_nothing_yet) {
  TemporaryFolder folder;
  write_all(folder / "config.yaml", "");
  write_all(folder / "metrics.jsonl", "");
  const auto run = read_run_data(folder.path().string());
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run.value().name, folder.path().filename().string());
  EXPECT_TRUE(run.value().metrics.steps.empty());
}

TEST(RunData, folders_that_are_no_run_are_refused) {
  TemporaryFolder folder;
  EXPECT_EQ(read_run_data(folder.path().string()).error().code, ExitCode::kUsage);
  EXPECT_EQ(read_run_data(folder / "absent").error().code, ExitCode::kUsage);
}

TEST(RankHeat, joins_windows_until_the_bytes_suffice) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.steps = 400, .windows = 40, .slow_rank = 5});
  const auto all = read_rank_heat(folder / "run", 1 << 20);
  ASSERT_TRUE(all && all.value());
  EXPECT_EQ(all.value()->slices.size(), 40u);
  const auto few = read_rank_heat(folder / "run", 8 * 11 * 10);  // 8 ranks, 11 quantities, 10 slices
  ASSERT_TRUE(few && few.value());
  const RankHeat& heat = *few.value();
  ASSERT_EQ(heat.slices.size(), 10u);
  EXPECT_EQ(heat.slices.front().first_step, 1);
  EXPECT_EQ(heat.slices.back().last_step, 400);
  for (size_t i = 1; i < 10; ++i) EXPECT_EQ(heat.slices[i].first_step, heat.slices[i - 1].last_step + 1);
}

TEST(RunData, changes_as_earlier_versions_wrote_them) {
  TemporaryFolder folder;
  write_all(folder / "events.jsonl",
            R"({"time":1763812345.5,"attempt":"a","job":"","kind":"start","rank":0,"host":"","text":"",)"
            R"("fields":{"changed.lr.peak":"0.1 -> 0.2"}})"
            "\n");
  const RunData run = value_or_throw(read_run_data(folder.path().string()));
  ASSERT_EQ(run.changes.size(), 1u);
  EXPECT_EQ(run.changes[0].name, "lr.peak");
  EXPECT_EQ(run.changes[0].before, "0.1");
  EXPECT_EQ(run.changes[0].after, "0.2");
}

// Returns the amount that a byte of `quantity` represents, as in page/heat.js.
double heat_amount(const HeatQuantity& quantity, size_t slice, int world_rank, const RankMesh& mesh) {
  const double byte = quantity.bytes[slice][static_cast<size_t>(world_rank)];
  if (quantity.scale == HeatScale::kAmount) return byte / 255 * quantity.most;
  const auto role = static_cast<size_t>(mesh.stage_of(world_rank) * mesh.tp() + mesh.grid.rank_on("tp", world_rank));
  const double slower = std::exp2((byte - 128) / 127), middle = quantity.medians[slice][role];
  return quantity.is_rate ? middle / slower : middle * slower;
}

TEST(RankHeat, bytes_stand_for_the_seconds_that_were_measured) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.windows = 4, .slow_rank = 5});
  const auto read = read_rank_heat(folder / "run", 1 << 20);
  ASSERT_TRUE(read && read.value());
  const RankHeat& heat = *read.value();
  const auto compute = std::find_if(heat.quantities.begin(), heat.quantities.end(),
                                    [](const HeatQuantity& q) { return q.name == "compute"; });
  ASSERT_NE(compute, heat.quantities.end());
  // Stage 1 (ranks 4 to 7) has the head and is 5 % slower overall; rank 5 is 20 % slower in the second half.
  EXPECT_NEAR(heat_amount(*compute, 0, 0, heat.mesh), 1.75, 0.04);
  EXPECT_NEAR(heat_amount(*compute, 0, 5, heat.mesh), 1.75 * 1.05, 0.05);
  EXPECT_NEAR(heat_amount(*compute, 3, 5, heat.mesh), 1.75 * 1.05 * 1.2, 0.05);
  EXPECT_NEAR(heat_amount(*compute, 3, 4, heat.mesh), 1.75 * 1.05, 0.05);
  // A rate is the stage's FLOPs divided by that, and the slow rank's is the lowest; both show the same slowness.
  const auto rate = std::find_if(heat.quantities.begin(), heat.quantities.end(),
                                 [](const HeatQuantity& q) { return q.name == "rate"; });
  ASSERT_NE(rate, heat.quantities.end());
  EXPECT_TRUE(rate->is_rate);
  EXPECT_NEAR(heat_amount(*rate, 3, 5, heat.mesh), heat_amount(*rate, 3, 4, heat.mesh) / 1.2,
              0.03 * heat_amount(*rate, 3, 4, heat.mesh));
  EXPECT_NEAR(rate->bytes[3][5], compute->bytes[3][5], 1);
  const auto dp = std::find_if(heat.quantities.begin(), heat.quantities.end(),
                               [](const HeatQuantity& q) { return q.name == "dp"; });
  ASSERT_NE(dp, heat.quantities.end());
  EXPECT_NEAR(heat_amount(*dp, 3, 5, heat.mesh), 0.01, 0.001) << "the slow rank waits the least";
}

}  // namespace
}  // namespace tri
