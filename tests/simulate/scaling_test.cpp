// Tables and pictures of how a layout scales.
#include "lib/simulate/scaling.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include "lib/observe/timeline/simulated_timeline.h"
#include "lib/report/picture.h"
#include "lib/simulate/planner.h"

namespace tri {
namespace {

Workload small_gpt() {
  Workload w;
  w.model.layers = 24;
  w.model.hidden = 2048;
  w.model.heads = w.model.kv_heads = 16;
  w.model.head_dim = 128;
  w.model.ffn_hidden = 8192;
  w.model.vocab = 50304;
  w.model.seq_len = 2048;
  w.tp = w.pp = 2;
  w.global_batch = 256;
  return w;
}

TEST(Scaling, weak_grows_and_strong_ends_with_its_batch) {
  const Cluster cluster;
  const auto weak = scaling_rows(small_gpt(), cluster, Scaling::kWeak, 131072);
  ASSERT_EQ(weak.back().workload.ranks(), 131072);
  for (size_t i = 1; i < weak.size(); ++i) {
    EXPECT_GT(weak[i].step.tokens_per_second, weak[i - 1].step.tokens_per_second);
  }
  const auto strong = scaling_rows(small_gpt(), cluster, Scaling::kStrong, 131072);
  EXPECT_EQ(strong.back().workload.num_microbatches(), 1);
  EXPECT_LT(strong.back().step.seconds, strong.front().step.seconds);
}

// A group's id takes one message per member, its handles one per pair; ranks make four groups of two, one of tp, one of
// dp, one of all.
TEST(Scaling, messages_of_a_start_are_counted) {
  Workload w = small_gpt();
  w.dp = 4;  // 16 ranks
  w.model.tie_embeddings = false;
  const StartUp start = start_up(w, Cluster{});
  EXPECT_EQ(start.groups, 1 + 8 + 4 + 32);
  EXPECT_EQ(start.messages, (15 + 16 * 15) + 8 * (1 + 2) + 4 * (3 + 12) + 32 * (1 + 2));
  EXPECT_EQ(start.data_readers, 2) << "both machines hold ranks of an end";
  Workload larger = w;
  larger.dp = 4096;
  const StartUp large = start_up(larger, Cluster{});
  EXPECT_LT(large.groups_s, 30) << "groups of 16,384 ranks";
  EXPECT_GT(large.groups_s, start.groups_s);
  EXPECT_EQ(large.calls, start.calls);
  EXPECT_NEAR(static_cast<double>(large.gathered_bytes) / static_cast<double>(start.gathered_bytes), 1000, 500)
      << "every rank hears of every other";
}

// Every axis of a stage counts: ranks that share weights pass them on, and each rank of the first stage shares its
// embedding with one of the last.
TEST(Scaling, starts_of_more_axes_than_tp_and_dp_are_counted) {
  Workload w = small_gpt();
  w.dp = 1, w.cp = 4;  // 16 ranks
  w.model.tie_embeddings = false;
  const StartUp untied = start_up(w, Cluster{});
  w.model.tie_embeddings = true;
  EXPECT_EQ(start_up(w, Cluster{}).groups - untied.groups, 8);
  Workload by_dp = w;
  by_dp.dp = 4, by_dp.cp = 1;
  EXPECT_DOUBLE_EQ(start_up(w, Cluster{}).load_s, start_up(by_dp, Cluster{}).load_s);
}

TEST(Scaling, json_and_svg_hold_every_row) {
  const auto rows = scaling_rows(small_gpt(), Cluster{}, Scaling::kWeak, 64);
  const auto json = nlohmann::json::parse(to_json(rows));
  ASSERT_EQ(json.size(), rows.size());
  EXPECT_DOUBLE_EQ(json[0]["step_s"].get<double>(), rows[0].step.seconds);
  const std::string svg = to_svg(rows, "a < b & c");
  EXPECT_NE(svg.find("a &lt; b &amp; c"), svg.npos);
  size_t bars = 0;
  for (size_t at = svg.find("<rect"); at != svg.npos; at = svg.find("<rect", at + 1)) ++bars;
  EXPECT_EQ(bars, 11 * rows.size() + 11);  // eleven parts per row, and the legend
  EXPECT_NE(svg.find("</svg>"), svg.npos);
  EXPECT_NE(to_svg({rows[0]}, std::string(200, 'x')).find("viewBox=\"0 0 1850 "), svg.npos) << "the title is cut";
}

// A separate box per action took 4 MB for 512 microbatches.
TEST(Scaling, pictures_of_many_microbatches_stay_small) {
  Workload w = small_gpt();
  w.pp = 4;
  w.global_batch = 2048;
  const Cluster cluster;
  const auto svg = value_or_throw(step_picture(simulated_segments(w, cluster, RingTimes(cluster)), 1, "many"));
  EXPECT_LT(svg.size(), 150'000u);
  size_t rows = 0;
  for (size_t at = svg.find("class=\"forward\""); at != svg.npos; at = svg.find("class=\"forward\"", at + 1)) ++rows;
  EXPECT_EQ(rows, 4 + 1u) << "a path a stage, and the legend";
  EXPECT_NE(svg.find("class=\"pp\""), svg.npos);
}

// Tries every layout with the exact model, without the search's bound and cut: none beats its winner by more than 2 %.
TEST(Planner, finds_what_trying_all_finds) {
  Config config;
  config.model = small_gpt().model;
  config.data.global_batch = 64;
  config.precision.compute = Dtype::kBF16;
  config.parallel.dp = 1;
  const Cluster cluster;
  const auto search = search_layouts(config, cluster, {.ranks = 32});
  ASSERT_TRUE(search) << search.error().message;
  const auto all = search_layouts(config, cluster, {.ranks = 32, .keep = 100000});
  ASSERT_TRUE(all);
  EXPECT_GT(all.value().best.size(), 50u);
  EXPECT_LE(search.value().best[0].step.seconds, 1.02 * all.value().best[0].step.seconds);
  for (const PlannedLayout& layout : search.value().best) {
    EXPECT_EQ(layout.workload.ranks(), 32);
    EXPECT_LE(static_cast<double>(layout.memory_bytes), room_of(cluster));
    EXPECT_GE(layout.step.seconds, search.value().best[0].step.seconds);
  }
}

TEST(Planner, says_why_nothing_fits) {
  Config config;
  config.model = small_gpt().model;
  config.data.global_batch = 64;
  Cluster tiny;
  tiny.device.memory_gib = 3;
  const auto search = search_layouts(config, tiny, {.ranks = 2});
  ASSERT_FALSE(search);
  for (const char* part : {"fits into 1.0 GiB per rank; the smallest takes 10.6", "; use more ranks"})
    EXPECT_NE(search.error().message.find(part), std::string::npos) << search.error().message;
  const auto odd = search_layouts(config, Cluster{}, {.ranks = 29});
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("no layout of 29 ranks"), std::string::npos) << odd.error().message;
  EXPECT_NE(odd.error().message.find("; use 28 or 30 ranks, or change"), std::string::npos) << odd.error().message;
  for (const int ranks : {28, 30}) EXPECT_TRUE(search_layouts(config, Cluster{}, {.ranks = ranks})) << ranks;
}

// A step of too many microbatches: the suggested batch can be planned; no rank count is suggested if none works.
TEST(Planner, says_what_to_do_about_a_batch_that_is_too_large) {
  Config config;
  config.model = small_gpt().model;
  const auto why = [&](int global_batch, int ranks) {
    config.data.global_batch = global_batch;
    const auto search = search_layouts(config, Cluster{}, {.ranks = ranks});
    EXPECT_FALSE(search) << global_batch;
    const std::string message = search ? "" : search.error().message;
    return message.substr(message.rfind("; ") + 2);
  };
  EXPECT_EQ(why(1 << 23, 1), "use 2 ranks, or lower data.global_batch");
  EXPECT_TRUE(search_layouts(config, Cluster{}, {.ranks = 8}));
  EXPECT_EQ(why(2147483647, 8), "lower data.global_batch");  // a prime
  EXPECT_EQ(why(2147483647, kMostRanks), "lower data.global_batch");
  EXPECT_EQ(why(3, kMostRanks), "use 576 ranks, or change data.global_batch");
}

}  // namespace
}  // namespace tri
