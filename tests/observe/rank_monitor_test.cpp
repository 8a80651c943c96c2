// The entries of metrics.jsonl about a window of ranks' times.
#include "lib/observe/ranks/rank_monitor.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"
#include "tests/observe/synthetic_ranks.h"

namespace tri {
namespace {

TEST(RankMonitor, a_window_s_line_names_the_slowest_rank_and_is_no_step) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  Draws draws(1);
  const RankWindow window =
      synthetic_window(mesh, 2, 0.01, draws, [](int rank, int64_t) { return rank == 6 ? 1.2 : 1.0; });
  const std::string line = ranks_json(mesh, window, {{.world_rank = 6}});
  const auto json = nlohmann::json::parse(line)["ranks"];
  EXPECT_EQ(json["first_step"], 101);
  EXPECT_EQ(json["last_step"], 150);
  EXPECT_EQ(json["slowest"], 6);
  EXPECT_EQ(json["host"], "node0");
  EXPECT_EQ(json["gpu"], "0000:06:00.0");
  EXPECT_NEAR(json["slowdown"].get<double>(), 0.2, 0.03);
  EXPECT_EQ(json["mean_ms"].size(), static_cast<size_t>(kNumRankQuantities));
  EXPECT_NEAR(json["stage_compute_ms"][1].get<double>(), 390, 10);
  EXPECT_EQ(json["stragglers"], nlohmann::json({6}));

  // Readers that look for steps in the file skip it.
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile metrics(path);
    metrics.step({.step = 150, .step_ms = 12});
    metrics.ranks(line);
  }
  value_or_throw(begin_metrics(path, 140));
  EXPECT_NE(read_all(path).find(R"({"restart":1,"step":140,"lost_steps":10,)"), std::string::npos) << read_all(path);
}

TEST(RankMonitor, flops_of_stages_count_the_keys_of_documents) {
  Config config;
  config.model = {.layers = 4, .hidden = 64, .heads = 4, .head_dim = 16, .kv_heads = 4, .vocab = 1000, .seq_len = 512};
  config.data.global_batch = 8;
  config.parallel = {.pp = 2, .chunks = 1};
  const Mesh mesh = make_mesh(0, {{"dp", 2}, {"pp", 2}});
  const std::vector<double> whole = stage_flops(config, mesh);
  EXPECT_EQ(stage_flops(config, mesh, {512}), whole);
  const std::vector<double> documents = stage_flops(config, mesh, {128});
  const double of_rank = 8 * 512 / 2.0;  // tokens
  ASSERT_EQ(documents.size(), 2u);
  for (size_t stage = 0; stage < 2; ++stage)
    EXPECT_NEAR(whole[stage] - documents[stage], of_rank * 2 * 12 * 64 * (512 - 128), 1e-6 * whole[stage]);
  EXPECT_GT(documents[1], documents[0]) << "the head";
}

}  // namespace
}  // namespace tri
