// Every file of configs/ is a valid run config without changes.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "lib/config/axis_fields.h"
#include "lib/config/config.h"
#include "lib/observe/status/estimates.h"

namespace tri {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TRI_SOURCE_DIR) / "configs";

// The number of ranks that each preset was designed for, and its parameters in millions, without biases, norms and
// padding; 0: its name states no size.
struct Preset {
  int ranks;
  double millions;
};
const std::map<std::string, Preset> kPresets = {
    {"quickstart.yaml", {8, 0}},
    {"gpt2_124m.yaml", {8, 124}},
    {"gpt2_1558m.yaml", {8, 1558}},
    {"gpt_1b3.yaml", {8, 1315}},
    {"gpt_13b.yaml", {64, 12850}},
    {"megascale_175b.yaml", {256, 174800}},
    {"megascale_530b.yaml", {2240, 529900}},
    {"llama_1b.yaml", {8, 1236}},
    {"llama_8b.yaml", {16, 8030}},
    {"llama_70b.yaml", {128, 70554}},
    {"llama_3_1b.yaml", {8, 1236}},
    {"llama_3_8b.yaml", {16, 8030}},
    {"llama_3_8b_131k.yaml", {16, 8030}},
    {"llama_3_70b.yaml", {128, 70554}},
    {"qwen2_5_7b.yaml", {16, 7615}},
    {"qwen3_0_6b.yaml", {8, 596}},
    {"qwen3_8b.yaml", {16, 8190}},
    {"qwen3_32b.yaml", {64, 32762}},
    {"qwen3_30b_a3b.yaml", {16, 30532}},
    {"mixtral_8x7b.yaml", {64, 46702}},
};

Config load(const std::string& name) {
  const std::string path = kFolder / name;
  const Config config = value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, {}));
  return value_or_throw(resolve_config(config, kPresets.at(name).ranks));
}

double count_parameters(const ModelConfig& m) {
  const double width = m.hidden, head = m.head_dim;
  const double attention = width * head * (2 * m.heads + 2 * m.kv_heads);
  const double ffn = m.experts > 0 ? 1.0 * m.expert_hidden * m.experts : m.ffn_hidden;
  const double feed_forward = width * ffn * (m.activation == Activation::kSwiglu ? 3 : 2);
  const double tables = m.vocab * width * (m.tie_embeddings ? 1 : 2);
  const double positions = m.position == Position::kLearned ? m.seq_len * width : 0;
  return m.layers * (attention + feed_forward) + tables + positions;
}

TEST(Presets, the_table_names_exactly_the_files) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".yaml") continue;  // skips the quick start's script
    EXPECT_TRUE(kPresets.contains(entry.path().filename())) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, kPresets.size());
}

TEST(Presets, resolve_at_their_natural_number_of_ranks) {
  for (const auto& [name, preset] : kPresets) {
    const Config config = load(name);
    EXPECT_EQ(ranks_along(AxisSet::outside({}), config.parallel), preset.ranks) << name;
    EXPECT_EQ(config.run.name + ".yaml", name);
  }
}

TEST(Presets, have_the_size_of_their_name) {
  for (const auto& [name, preset] : kPresets) {
    if (preset.millions == 0) continue;
    EXPECT_NEAR(count_parameters(load(name).model) / 1e6, preset.millions, 0.01 * preset.millions) << name;
  }
}

TEST(Presets, a_crash_loses_half_an_hour_at_most_and_zero_2_is_nowhere_dearer_than_compute) {
  for (const auto& [name, preset] : kPresets) {
    const Config config = load(name);
    EXPECT_GT(config.checkpoint.every_minutes, 0) << name;
    EXPECT_LE(config.checkpoint.every_minutes, 30) << name;
    EXPECT_FALSE(dp_traffic(config).exceeds_compute()) << name;
  }
}

TEST(Presets, quickstart_uses_all_three_axes_and_the_byte_tokenizer) {
  const Config config = load("quickstart.yaml");
  EXPECT_GT(config.parallel.tp, 1);
  EXPECT_GT(config.parallel.pp, 1);
  EXPECT_GT(config.parallel.dp, 1);
  EXPECT_EQ(config.data.tokenizer, "bytes");
  EXPECT_EQ(config.model.vocab, 257);
  EXPECT_EQ(config.data.sources.size(), 1u);
}

}  // namespace
}  // namespace tri
