// What a search leaves open and what it keeps: precision; and what is too large to be searched.
#include "lib/simulate/planner.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"
#include "lib/simulate/simulation.h"

namespace tri {
namespace {

Config config_of(const std::vector<std::string>& overrides) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/gpt_13b.yaml";
  return value_or_throw(
      without_layout(value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, overrides))));
}
Config config_with(const std::string& gemm) { return config_of({"precision.gemm=" + gemm}); }

Cluster cluster_of(const std::string& name) {
  auto cluster = read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/" + name + ".yaml");
  EXPECT_TRUE(cluster) << cluster.error().message;
  return cluster.value();
}

std::set<Numbers> found(const std::string& gemm, const std::string& cluster) {
  std::set<Numbers> numbers;
  const auto search = search_layouts(config_with(gemm), cluster_of(cluster), {.ranks = 16, .keep = 200});
  EXPECT_TRUE(search) << search.error().message;
  for (const PlannedLayout& layout : search.value().best) numbers.insert(layout.workload.numbers);
  return numbers;
}

TEST(Planner, searches_both_precisions_where_the_config_leaves_them_open) {
  EXPECT_EQ(found("compute", "h200"), std::set{Numbers::kBf16});
  EXPECT_EQ(found("fp8", "h200"), std::set{Numbers::kFp8});
  EXPECT_EQ(found("auto", "h200"), (std::set{Numbers::kBf16, Numbers::kFp8}));
  EXPECT_EQ(found("auto", "a100_megascale"), std::set{Numbers::kBf16});
  const auto refused = search_layouts(config_with("fp8"), cluster_of("a100_megascale"), {.ranks = 16});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("device.fp8_tflops is 0"), std::string::npos) << refused.error().message;
}

TEST(Planner, searches_the_microbatches_that_are_asked_for) {
  const auto all = search_layouts(config_with("compute"), cluster_of("h200"), {.ranks = 16, .keep = 200});
  std::set<int> sizes;
  for (const PlannedLayout& layout : value_or_throw(all).best) sizes.insert(layout.workload.micro_batch);
  EXPECT_GT(sizes.size(), 2u);
  const auto asked =
      search_layouts(config_with("compute"), cluster_of("h200"), {.ranks = 16, .keep = 200, .micro_batch = 2});
  for (const PlannedLayout& layout : value_or_throw(asked).best) EXPECT_EQ(layout.workload.micro_batch, 2);
  const auto none = search_layouts(config_with("compute"), cluster_of("h200"), {.ranks = 16, .micro_batch = 7});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("; change data.global_batch or data.micro_batch"), std::string::npos);
}

TEST(Planner, asks_nothing_of_the_layout_that_the_config_has) {
  const Config config = config_of({"parallel.tp=7", "parallel.pp=3", "parallel.dp=11", "parallel.chunks=13",
                                   "parallel.schedule=interleaved", "data.micro_batch=5"});
  const auto search = search_layouts(config, cluster_of("h200"), {.ranks = 16, .keep = 1});
  const auto plain = search_layouts(config_of({}), cluster_of("h200"), {.ranks = 16, .keep = 1});
  EXPECT_EQ(value_or_throw(search).best[0].step.seconds, value_or_throw(plain).best[0].step.seconds);
}

TEST(Planner, writes_the_precision_that_won) {
  const Config config = config_with("auto");
  auto search = search_layouts(config, cluster_of("h200"), {.ranks = 16, .keep = 1});
  ASSERT_TRUE(search) << search.error().message;
  Workload won = search.value().best.front().workload;
  EXPECT_EQ(won.numbers, Numbers::kFp8);
  EXPECT_EQ(with_layout(config, won).precision.gemm, GemmFormat::kFp8);
  won.numbers = Numbers::kBf16;
  EXPECT_EQ(with_layout(config, won).precision.gemm, GemmFormat::kCompute);
}

// A Plan lists every microbatch: so many were bad_alloc in `plan`, and minutes and gigabytes in `simulate`.
TEST(Planner, steps_of_millions_of_microbatches_are_refused) {
  Config config = config_with("compute");
  config.data.micro_batch = 1;
  config.data.global_batch = 1 << 30;
  const Cluster cluster = cluster_of("h100");
  const auto search = search_layouts(config, cluster, {.ranks = 16});
  ASSERT_FALSE(search);
  EXPECT_NE(search.error().message.find("at most 100000 microbatches"), std::string::npos) << search.error().message;
  const auto simulation = simulate(config, cluster, {});
  ASSERT_FALSE(simulation);
  EXPECT_NE(simulation.error().message.find("1073741824 microbatches, more than 100000"), std::string::npos)
      << simulation.error().message;
}

}  // namespace
}  // namespace tri
