#include "lib/simulate/new_config.h"

#include <fmt/ranges.h>
#include <algorithm>

#include "io/base/format.h"
#include "lib/config/error_list.h"
#include "lib/config/fields.h"
#include "lib/config/nearest.h"
#include "lib/config/presets.h"
#include "lib/config/utf8_text.h"
#include "lib/simulate/planner.h"
#include "lib/simulate/simulation.h"

namespace tri {
namespace {

// Fields that are written even at their defaults, because they differ from run to run.
constexpr std::string_view kShown[] = {
    "run.name",        "run.steps",          "run.eval_every",           "data.sources",
    "data.tokenizer",  "data.global_batch",  "data.micro_batch",         "parallel.tp",
    "parallel.pp",     "parallel.dp",        "parallel.chunks",          "parallel.schedule",
    "parallel.zero",   "parallel.recompute", "precision.compute",        "lr.peak",
    "lr.warmup_steps", "optimizer.name",     "checkpoint.every_minutes", "checkpoint.keep_last"};

// A tokenizer's vocabulary may be a little smaller than a preset's, which has space for tokens that are added later.
int vocab_for(int preset, int data) {
  return data > preset || (data > 0 && preset / data >= kOtherVocab) ? data : preset;
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return &preset;
  return nullptr;
}

// The text of a preset, or of the training settings around a model from elsewhere.
Result<std::string> base_config(const NewConfig& options) {
  if (options.imported_model) {
    auto config = parse_config(find_preset(kTrainingPreset)->yaml, std::string(kTrainingPreset), {});
    if (!config) return config.error();
    ModelConfig& model = config.value().model;
    const int longest = model.seq_len;
    model = *options.imported_model;
    model.seq_len = std::min(longest, model.seq_len);
    fit_window(model);
    config.value().run.name = "run";
    return to_yaml(config.value());
  }
  if (const Preset* preset = find_preset(options.model)) return std::string(preset->yaml);
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  const std::string near = nearest(options.model, names);
  return usage_error(
      "--model {}: no such preset; {}", options.model,
      near.empty() ? fmt::format("the presets are {}", fmt::join(names, ", ")) : "did you mean " + near + "?");
}

Result<Config> preset_config(const NewConfig& options) {
  const auto text = base_config(options);
  if (!text) return text.error();
  auto config = parse_config(text.value(), options.model, options.overrides);
  if (!config) return config;
  Config& c = config.value();
  if (!options.name.empty()) c.run.name = options.name;
  if (!options.tokenizer.empty()) c.data.tokenizer = options.tokenizer;
  if (!options.data.empty()) c.data.sources.clear();
  for (const std::string& path : options.data) c.data.sources.push_back({path, 1.0});
  c.model.vocab = vocab_for(c.model.vocab, options.data_vocab);
  return config;
}

struct Layout {
  Config config;
  std::string said;  // the number of ranks, and the predicted speed
};

// With parallel.dp=0 or recompute=auto, the search still chooses the field.
bool names_layout(const std::string& setting) {
  return setting != "parallel.dp=0" && setting != "parallel.recompute=auto" &&
         chosen_by_search(setting.substr(0, setting.find('=')));
}

Result<Layout> choose_layout(const Config& preset, const NewConfig& options, const Cluster& cluster) {
  const bool asked = std::any_of(options.overrides.begin(), options.overrides.end(), names_layout);
  if (asked || preset.run.device == DeviceChoice::kCpu) {
    Config own = preset;
    if (preset.run.device != DeviceChoice::kCpu) own.cluster.ranks_per_node = cluster.node.ranks;
    if (!names_field(options.overrides, "parallel.dp")) own.parallel.dp = 0;
    const auto resolved = resolve_config(own, options.ranks);
    if (asked && !resolved) return resolved.error();
    if (resolved) {
      own.parallel.dp = resolved.value().parallel.dp;
      if (preset.run.device != DeviceChoice::kCpu) {
        const auto simulation = simulate(resolved.value(), cluster);
        if (!simulation) return simulation.error();
        own = on_cluster(own, cluster, simulation.value().step, options.overrides);
      }
      return Layout{own, fmt::format("{} ranks", options.ranks)};
    }
  }
  const auto resolved = without_layout(preset);
  if (!resolved) return resolved.error();
  const int micro_batch = names_field(options.overrides, "data.micro_batch") ? preset.data.micro_batch : 0;
  const auto search =
      search_layouts(resolved.value(), cluster,
                     {.ranks = options.ranks,
                      .keep = 1,
                      .micro_batch = micro_batch,
                      .pinned = {.buckets = names_field(options.overrides, "parallel.bucket_elements")}});
  if (!search) return search.error();
  const PlannedLayout& best = search.value().best.front();
  const Config config = on_cluster(with_planned(preset, best.workload), cluster, best.step, options.overrides);
  return Layout{
      config,
      fmt::format("{} ranks of {}. Predicted{}: {:.3g} s{} per step, {:.0f} tokens/s, MFU {:.0f} % of {}, {} "
                  "per rank{}; `trireme plan` shows other layouts",
                  options.ranks, cluster.device.name,
                  is_own(cluster) ? "" : " with the speeds of " + cluster.software.name + " and Trireme's memory",
                  best.step.seconds, plus_minus(cluster), best.step.tokens_per_second, 100 * best.step.mfu,
                  mfu_peak(best.workload, cluster), format_bytes(best.memory_bytes),
                  is_tight(static_cast<double>(best.memory_bytes), room_of(cluster)) ? ", which is a tight fit" : "")};
}

// Returns comment lines of at most 120 columns.
std::string comment(const std::string& indent, std::string_view text) {
  constexpr size_t kColumns = 120;
  std::string lines, line = indent + "#";
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (line.size() + 1 + word.size() > kColumns) {
      lines += line + "\n";
      line = indent + "#";
    }
    line += " " + std::string(word);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return lines + line + "\n";
}

std::string write_out(const Config& config) {
  const Config defaults;
  std::string text;
  for (const Section& section : config_sections()) {
    std::string fields;
    for (const Field& field : section.fields) {
      const std::string value = field.print(config);
      const bool shown = std::find(std::begin(kShown), std::end(kShown), field.name()) != std::end(kShown);
      if (!shown && value == field.print(defaults)) continue;
      fields += comment("  ", fmt::format("{} ({})", field.consequence, field.rule.allowed_text)) +
                fmt::format("  {}: {}\n", field.key, field.file_text(config));
    }
    if (!fields.empty()) text += "\n" + comment("", section.title) + section.name + ":\n" + fields;
  }
  return text;
}

}  // namespace

std::string ffn_hidden_remark(const NewConfig& options) {
  const auto config = preset_config(options);
  if (!config || options.imported_model || names_field(options.overrides, "model.ffn_hidden")) return "";
  NewConfig plain = options;
  plain.overrides.clear();
  const auto preset = preset_config(plain);
  const ModelConfig &changed = config.value().model, &original = preset.value().model;
  if (changed.hidden == original.hidden || changed.ffn_hidden == 0) return "";
  return fmt::format(
      "model.ffn_hidden: {} is still the preset's value, made for model.hidden {}; --set model.ffn_hidden=0 derives it "
      "from model.hidden {}",
      changed.ffn_hidden, original.hidden, changed.hidden);
}

Result<std::string> new_config(const NewConfig& options, const Cluster& cluster) {
  if (options.ranks < 1) return usage_error("--gpus {}: expected at least 1", options.ranks);
  if (options.ranks > kMostRanks) return usage_error("--gpus {}: expected at most {}", options.ranks, kMostRanks);
  if (auto named = check_utf8({options.model, options.name, options.tokenizer}); !named) return named.error();
  for (const std::string& path : options.data)
    if (auto named = check_utf8({path}); !named) return named.error();
  auto preset = preset_config(options);
  if (!preset) return preset.error();
  auto layout = choose_layout(preset.value(), options, cluster);
  if (!layout) return layout.error();
  if (const auto resolved = resolve_config(layout.value().config, options.ranks); !resolved) return resolved.error();
  const std::string remark = ffn_hidden_remark(options);
  std::string text =
      comment("", fmt::format(
                      "From {}{}, for {}{}.", options.imported_model ? "" : "the preset ", options.model,
                      layout.value().said,
                      preset.value().model.vocab == options.data_vocab ? "; model.vocab is that of the data" : "")) +
      comment("", "Fields that are not listed have their defaults; `trireme check --fields` prints them.") +
      (remark.empty() ? "" : comment("", remark)) + write_out(layout.value().config);
  // Names and paths are copied from the options, so check that `check` can read the new config.
  if (const auto read = parse_config(text, "the new config", {}); !read) return read.error();
  return text;
}

}  // namespace tri
