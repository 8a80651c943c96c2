#include "lib/simulate/new_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "lib/config/presets.h"

namespace tri {
namespace {

std::string_view preset_text(std::string_view name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return preset.yaml;
  return "";
}

Cluster h100() { return value_or_throw(parse_cluster(preset_cluster_h100(), "h100", {})); }

// Two numbers of ranks for each preset, in turn; with TRIREME_ALL_CASES all.
TEST(NewConfig, of_every_preset_resolves_for_the_ranks_it_was_made_for) {
  const Cluster cluster = h100();
  std::array all_ranks{8, 16, 64, 512, 2240};
  const int enough = std::getenv("TRIREME_ALL_CASES") == nullptr ? 2 : static_cast<int>(all_ranks.size());
  for (const Preset& preset : presets()) {
    int made = 0;
    const Config from = value_or_throw(parse_config(preset.yaml, "preset", {}));
    std::ranges::rotate(all_ranks, all_ranks.begin() + 1);
    for (const int ranks : all_ranks) {
      if (made == enough) break;
      const auto text = new_config(
          {.model = std::string(preset.name), .ranks = ranks, .name = "mine", .data = {"a", "b$c"}}, cluster);
      if (!text) {  // the model does not fit, or the batch is not divisible
        EXPECT_FALSE(text.error().message.empty());
        continue;
      }
      ++made;
      const Config config = value_or_throw(parse_config(text.value(), "new.yaml", {}));
      EXPECT_TRUE(resolve_config(config, ranks)) << preset.name << " " << ranks;
      const ParallelConfig& p = config.parallel;
      EXPECT_EQ(p.tp * p.cp * p.pp * p.dp, ranks) << preset.name;
      EXPECT_EQ(config.model, from.model);
      EXPECT_EQ(config.optimizer, from.optimizer);
      EXPECT_EQ(config.lr, from.lr);
      EXPECT_EQ(config.data.global_batch, from.data.global_batch);
      EXPECT_EQ(config.run.name, "mine");
      EXPECT_EQ(config.data.sources, (std::vector<Source>{{"a", 1.0}, {"b$c", 1.0}}));
      for (size_t at = 0; at < text.value().size();) {
        const size_t end = text.value().find('\n', at);
        EXPECT_LE(end - at, 120u);
        at = end + 1;
      }
    }
    EXPECT_GT(made, 0) << preset.name;
  }
}

TEST(NewConfig, says_whose_speeds_and_memory_it_planned_with) {
  const Cluster nemo = value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/h100_nemo.yaml"));
  const auto mixed = value_or_throw(new_config({.model = "llama_8b", .ranks = 16}, nemo));
  const auto squeezed = [](std::string text) {  // without the line breaks of comments
    for (size_t at; (at = text.find("\n# ")) != text.npos;) text.replace(at, 3, " ");
    return text;
  };
  EXPECT_NE(squeezed(mixed).find("Predicted with the speeds of NeMo 2025 and Trireme's memory: "), mixed.npos) << mixed;
  EXPECT_NE(squeezed(mixed).find(" of 989 TFLOP/s, "), mixed.npos) << mixed;
  EXPECT_NE(squeezed(mixed).find(" s ± "), mixed.npos) << mixed;
  EXPECT_NE(value_or_throw(new_config({.model = "llama_8b", .ranks = 16}, h100())).find("Predicted: "), mixed.npos);
}

TEST(NewConfig, keeps_requested_settings) {
  const auto text = value_or_throw(new_config(
      {.model = "llama_8b", .ranks = 16, .tokenizer = "t.model", .overrides = {"parallel.tp=4", "lr.peak=1e-3"}},
      h100()));
  const Config config = value_or_throw(parse_config(text, "new.yaml", {}));
  EXPECT_EQ(config.parallel.tp, 4);
  EXPECT_EQ(config.parallel.dp, 4);
  EXPECT_EQ(config.lr.peak, 1e-3);
  EXPECT_EQ(config.data.tokenizer, "t.model");
}

// Layout settings that are given stay; the search chooses the others, within the given settings.
TEST(NewConfig, chooses_only_what_is_not_set) {
  const auto made = [](const std::vector<std::string>& overrides) {
    const NewConfig options{.model = "llama_8b", .ranks = 16, .overrides = overrides};
    return value_or_throw(parse_config(value_or_throw(new_config(options, h100())), "new.yaml", {}));
  };
  const Config free = made({});
  for (const int micro_batch : {1, 2}) {
    const Config config = made({fmt::format("data.micro_batch={}", micro_batch)});
    EXPECT_EQ(config.data.micro_batch, micro_batch);
    EXPECT_EQ(config.parallel.tp * config.parallel.cp * config.parallel.pp * config.parallel.dp, 16);
  }
  const Config smaller_buckets = made({"parallel.bucket_elements=20000000"});
  EXPECT_EQ(smaller_buckets.parallel.bucket_elements, 20000000);
  EXPECT_EQ(smaller_buckets.parallel.tp, free.parallel.tp);
  EXPECT_EQ(smaller_buckets.parallel.pp, free.parallel.pp);
  EXPECT_EQ(made({"parallel.dp=2", "parallel.tp=8"}).parallel.dp, 2);
  EXPECT_EQ(made({"parallel.dp=0", "parallel.recompute=auto"}).parallel, free.parallel) << "both leave it open";
}

// `check` uses these values; the defaults would be an H100's.
TEST(NewConfig, carries_over_what_the_cluster_file_says_of_machines) {
  const Cluster a100 =
      value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/a100_megascale.yaml"));
  const auto made = [&](const std::vector<std::string>& overrides, const Cluster& cluster) {
    const NewConfig options{.model = "llama_8b", .ranks = 64, .overrides = overrides};
    return value_or_throw(parse_config(value_or_throw(new_config(options, cluster)), "new.yaml", {})).cluster;
  };
  const ClusterConfig c = made({}, a100);
  EXPECT_EQ(c.node_gb_per_s, 229);
  EXPECT_EQ(c.network_gb_per_s, 25);
  EXPECT_EQ(c.storage_gb_per_s, 100);
  EXPECT_EQ(c.rank_mtbf_hours, 50688);
  EXPECT_GT(c.rank_tflops, 100);
  EXPECT_LT(c.rank_tflops, 268);
  EXPECT_EQ(made({"cluster.network_gb_per_s=7"}, a100).network_gb_per_s, 7);
  EXPECT_EQ(made({"parallel.tp=4"}, a100).node_gb_per_s, 229) << "also where the layout is not searched for";
  const Cluster little = value_or_throw(parse_cluster("node:\n  ranks: 4\n", "c.yaml", {}));
  EXPECT_EQ(made({}, little).network_gb_per_s, ClusterConfig{}.network_gb_per_s);
  EXPECT_EQ(made({}, little).ranks_per_node, 4);
}

TEST(NewConfig, of_a_model_from_elsewhere_is_trained_as_a_preset) {
  ModelConfig model =
      value_or_throw(parse_config("model: {layers: 4, hidden: 256, heads: 4, vocab: 512}", "m", {})).model;
  model.seq_len = 131072;
  model.window = 65536;
  const NewConfig options{.model = "hf/config.json", .imported_model = model, .ranks = 8};
  const std::string text = value_or_throw(new_config(options, h100()));
  EXPECT_NE(text.find("# From hf/config.json, for 8 ranks"), std::string::npos) << text;
  const Config made = value_or_throw(parse_config(text, "new.yaml", {}));
  const Config training = value_or_throw(parse_config(preset_text(kTrainingPreset), "preset", {}));
  EXPECT_EQ(made.model.seq_len, training.model.seq_len) << "the longest sample by default";
  EXPECT_EQ(made.model.window, 0) << "it exceeds a sample";
  EXPECT_EQ(made.model.hidden, 256);
  EXPECT_EQ(made.lr, training.lr);
  NewConfig longer = options;
  longer.overrides = {"model.seq_len=16384"};
  EXPECT_EQ(value_or_throw(parse_config(value_or_throw(new_config(longer, h100())), "n", {})).model.seq_len, 16384);
}

TEST(NewConfig, says_that_another_width_keeps_the_preset_s_feed_forward_width) {
  const auto remark = [](const std::vector<std::string>& overrides) {
    return ffn_hidden_remark({.model = "llama_1b", .ranks = 1, .overrides = overrides});
  };
  const std::string text = remark({"model.hidden=64", "model.heads=4", "model.kv_heads=4"});
  EXPECT_NE(text.find("model.ffn_hidden: 8192 is still the preset"), std::string::npos) << text;
  EXPECT_EQ(remark({}), "");
  EXPECT_EQ(remark({"lr.peak=1e-3"}), "");
  EXPECT_EQ(remark({"model.hidden=64", "model.ffn_hidden=0"}), "");
  EXPECT_EQ(ffn_hidden_remark({.model = "gpt2_124m", .overrides = {"model.hidden=96"}}), "")
      << "it follows hidden there";
  const NewConfig options{
      .model = "llama_1b", .ranks = 8, .overrides = {"model.hidden=1024", "model.heads=8", "model.kv_heads=8"}};
  std::string made = value_or_throw(new_config(options, h100()));
  EXPECT_NE(made.find("# model.ffn_hidden: 8192 is still"), std::string::npos) << made;
}

TEST(NewConfig, names_the_nearest_preset_and_what_does_not_fit) {
  const auto error = [](NewConfig options) {
    const auto text = new_config(options, h100());
    return text ? "" : text.error().message;
  };
  EXPECT_EQ(error({.model = "lama_8b", .ranks = 8}), "--model lama_8b: no such preset; did you mean llama_8b?");
  EXPECT_EQ(error({.model = "llama_8b", .ranks = 0}), "--gpus 0: expected at least 1");
  EXPECT_EQ(error({.model = "llama_8b", .ranks = kMostRanks + 1}), "--gpus 1048577: expected at most 1048576");
  EXPECT_NE(error({.model = "llama_70b", .ranks = 1}), "");
  EXPECT_NE(error({.model = "llama_8b", .ranks = 8, .name = "a/b"}).find("is not a file name"), std::string::npos);
  for (const NewConfig& named : {NewConfig{.model = "llama_8b", .ranks = 8, .data = {"text", "caf\xe9/text"}},
                                 {.model = "llama_8b", .ranks = 8, .tokenizer = "caf\xe9/m.model"}})
    EXPECT_TRUE(error(named).starts_with("caf\xe9/")) << error(named);
  EXPECT_NE(error({.model = "llama_8b", .ranks = 16, .overrides = {"parallel.tp=3"}}).find("parallel.tp: 3 does not"),
            std::string::npos);
}

}  // namespace
}  // namespace tri
