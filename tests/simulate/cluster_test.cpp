// Cluster files: what is refused and how, round trips, and that the files of the repository name their sources.
#include "lib/simulate/cluster.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tri {
namespace {

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto cluster = parse_cluster(text, "c.yaml", overrides);
  return cluster ? "" : cluster.error().message;
}

TEST(Cluster, mistakes_name_line_key_and_remedy) {
  const std::string error = error_of("device:\n  bf16_tflop: 312\nsoftwear: {}\nnode:\n  ranks: 0\n  gb_per_s: fast\n");
  EXPECT_NE(error.find("c.yaml:2: device.bf16_tflop: unknown key; did you mean device.bf16_tflops?"), error.npos)
      << error;
  EXPECT_NE(error.find("c.yaml:3: softwear: unknown section; did you mean software?"), error.npos) << error;
  EXPECT_NE(error.find("c.yaml:5: node.ranks: 0 is out of range; allowed: integer >= 1"), error.npos) << error;
  EXPECT_NE(error.find("c.yaml:6: node.gb_per_s: fast is not a number"), error.npos) << error;
  EXPECT_NE(error.find("4 errors"), error.npos) << error;
}

TEST(Cluster, other_mistakes_are_refused) {
  EXPECT_NE(error_of("device: 3\n").find("is a section"), std::string::npos);
  EXPECT_NE(error_of("device:\n  bf16_tflops: 1\n  bf16_tflops: 2\n").find("given twice"), std::string::npos);
  EXPECT_NE(error_of("ranks: 3\n").find("did you mean node.ranks?"), std::string::npos);
  EXPECT_NE(error_of("device: [").find("not valid YAML"), std::string::npos);
  EXPECT_NE(error_of("gemms: [[1, 2]]\n").find("[m, n, k, tflops, scatter]"), std::string::npos);
  EXPECT_NE(error_of("node:\n", {"node.rank=3"})
                .find("--cluster-set node.rank=3: node.rank: unknown key; did you mean node.ranks?"),
            std::string::npos);
  EXPECT_NE(error_of("node:\n", {"node"}).find("expected section.key=value"), std::string::npos);
  // Terminal control characters are not repeated.
  EXPECT_NE(error_of("\"no\\eded\": 3\n").find("no\uFFFDded: unknown section"), std::string::npos);
  // Otherwise every constant would be a default.
  for (const char* empty : {"", "\n", "# device:\n#   name: A100\n", "---\n"})
    EXPECT_EQ(error_of(empty).find("c.yaml: the file has no sections"), 0u) << empty << ": " << error_of(empty);
  const auto missing = read_cluster("/nowhere/cluster.yaml");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find(
                "/nowhere/cluster.yaml: cannot read the config: No such file or directory; expected a cluster file"),
            std::string::npos);
}

// Files of earlier versions have it with 0.
TEST(Cluster, a_removed_constant_is_ignored_with_its_neutral_value_and_refused_with_another) {
  for (const char* zero : {"0", "0.0"}) {
    const auto cluster = parse_cluster(fmt::format("software:\n  fixed_s: {}\n", zero), "c.yaml", {});
    ASSERT_TRUE(cluster) << cluster.error().message;
    EXPECT_EQ(to_yaml(cluster.value()).find("fixed_s"), std::string::npos);
  }
  for (const char* other : {"0.01", "fast"})
    EXPECT_EQ(error_of(fmt::format("software:\n  fixed_s: {}\n", other))
                  .find("c.yaml:2: software.fixed_s was removed: no measured step has a constant time"),
              0U)
        << other;
  EXPECT_NE(error_of("node:\n", {"software.fixed_s=1"}).find("delete the line"), std::string::npos);
}

TEST(Cluster, files_of_the_other_kind_are_named_as_such) {
  const std::string configs = std::string(TRI_SOURCE_DIR) + "/configs/";
  const auto cluster = read_cluster(configs + "llama_8b.yaml");
  ASSERT_FALSE(cluster);
  EXPECT_NE(cluster.error().message.find("llama_8b.yaml: this is a run config; --cluster needs a cluster file"),
            std::string::npos)
      << cluster.error().message;
  const auto config = read_run_config(configs + "clusters/h100.yaml", {});
  ASSERT_FALSE(config);
  EXPECT_NE(config.error().message.find("h100.yaml: this is a cluster file"), std::string::npos)
      << config.error().message;
  EXPECT_TRUE(read_run_config(configs + "llama_8b.yaml", {"parallel.tp=2"}));
  EXPECT_EQ(
      error_of("node:\n", {"memory_gib=80"}).find("--cluster-set memory_gib=80: did you mean device.memory_gib=80?"),
      0U);
}

// Like configs: lib/config/yaml_map.h.
TEST(Cluster, merges_anchors_and_takes_one_document) {
  const auto merged =
      parse_cluster("x-eight: &eight\n  ranks: 4\n  gb_per_s: 7\nnode:\n  <<: *eight\n  ranks: 8\n", "c", {});
  ASSERT_TRUE(merged) << merged.error().message;
  EXPECT_EQ(merged.value().node.ranks, 8);
  EXPECT_EQ(merged.value().node.gb_per_s, 7);
  EXPECT_NE(error_of("node: {ranks: 4}\n---\nnode: {ranks: 8}\n").find("2 YAML documents in one file"),
            std::string::npos);
  EXPECT_NE(error_of("node:\n\tranks: 4\n").find("c.yaml:2: a tab indents this line"), std::string::npos);
  EXPECT_NE(error_of("node:\n  <<: 3\n").find("node.<<: merges only maps"), std::string::npos);
}

// Each of these caused a report of "nan" seconds, or one that never ended.
TEST(Cluster, numbers_far_beyond_machines_are_refused) {
  for (const char* text : {"node.gb_per_s=1e-320", "device.memory_gb_per_s=1e300"})
    EXPECT_NE(error_of("", {text}).find("is out of range; expected a number from"), std::string::npos) << text;
  for (const char* text : {"fabric.queue_pairs=100000", "fabric.up_ports=1000000", "device.multiprocessors=2000000000",
                           "device.memory_gib=1e18"})
    EXPECT_NE(error_of("", {text}).find("is out of range"), std::string::npos) << text;
  EXPECT_NE(error_of("gemms: [[1e300, 2, 3, 4, 0]]\n").find("gemms: expected"), std::string::npos);
  EXPECT_EQ(error_of("node:\n", {"node.start_us=0"}), "");
}

TEST(Cluster, prints_what_it_reads) {
  auto cluster = parse_cluster(
      "device: {name: \"a: b\", bf16_tflops: 312.5}\nuncertainty: 0.03\ngemms:\n  - [1, 2, 3, 4.5, 0.01]\n", "c.yaml",
      {"node.ranks=4", "stragglers.share=0.25"});
  ASSERT_TRUE(cluster) << cluster.error().message;
  const auto again = parse_cluster(to_yaml(cluster.value()), "again.yaml", {});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again.value().device, cluster.value().device);
  EXPECT_EQ(again.value().node, cluster.value().node);
  EXPECT_EQ(again.value().stragglers, cluster.value().stragglers);
  EXPECT_EQ(again.value().gemms, cluster.value().gemms);
  EXPECT_EQ(again.value().uncertainty, 0.03);
  EXPECT_EQ(cluster.value().node.ranks, 4);
  EXPECT_TRUE(again.value().defaults.empty());
  EXPECT_FALSE(cluster.value().defaults.empty());
}

// Every number of configs/clusters names its source, and no constant keeps its default.
TEST(Cluster, files_of_the_repository_are_whole_and_sourced) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(TRI_SOURCE_DIR) + "/configs/clusters")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    const auto cluster = read_cluster(entry.path());
    ASSERT_TRUE(cluster) << cluster.error().message;
    EXPECT_TRUE(cluster.value().defaults.empty()) << entry.path() << " omits " << cluster.value().defaults.front();
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("  ") && line.find(": ") != line.npos && line.find(": 0") == line.npos) {
        EXPECT_NE(line.find(" # "), line.npos) << entry.path() << ": " << line;
      }
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace tri
