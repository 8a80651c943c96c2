// trireme config: writes a new run config, and compares two.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "app/commands.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "io/tokens/prepare.h"
#include "io/tokens/token_file.h"
#include "lib/config/changes.h"
#include "lib/config/presets.h"
#include "lib/config/schema.h"
#include "lib/huggingface/tokenizer_files.h"
#include "lib/huggingface/weight_format.h"
#include "lib/simulate/new_config.h"

namespace tri {
namespace {

struct NewOptions {
  NewConfig config;
  std::string hf;  // a folder of Hugging Face, in place of config.model
  std::string cluster, output;
  bool force = false;
};

constexpr const char* kSchemaName = "trireme.schema.json";

// Writes the config and, next to it, the schema from which editors know its fields.
Result<void> write_new(const NewOptions& options, const std::string& text) {
  std::error_code ignored;
  if (!options.force && std::filesystem::exists(options.output, ignored))
    return usage_error("{}: already exists; name another file, or overwrite it with --force", options.output);
  const std::string first_line = fmt::format("# yaml-language-server: $schema={}\n", kSchemaName);
  if (auto written = write_file(options.output, first_line + text); !written) return written;
  const std::string schema = (std::filesystem::path(options.output).parent_path() / kSchemaName).string();
  if (auto written = write_file(schema, config_schema()); !written) return written;
  print_out("wrote {}, and {} for editors\nnext: trireme check {}\n", options.output, schema, options.output);
  return {};
}

// Reads the tokenizer, unless one is named, and its vocabulary from the token files. Fails if one of them cannot be
// opened or (kUsage) if two were made with different tokenizers.
Result<void> look_at_data(NewConfig& config) {
  int largest = 0;
  TokenOrigin known;  // of the first file that names its tokenizer
  std::string known_prefix;
  for (const std::string& prefix : config.data) {
    if (auto file = TokenFile::open(prefix); !file)
      return Error{fmt::format("--data {}: {}\n"
                               "if the data are not on this machine, use --set 'data.sources=[{}]' instead",
                               prefix, file.error().message, prefix),
                   file.error().code};
    const auto origin = prepared_with(prefix);
    if (!origin) return origin.error();
    const TokenOrigin& made = origin.value();
    if (!known.fingerprint.empty() && !made.fingerprint.empty() && known.fingerprint != made.fingerprint)
      return usage_error(
          "--data {} and --data {}: prepared with different tokenizers, {} ({}) and {} ({}); prepare both with one",
          known_prefix, prefix, known.tokenizer, known.fingerprint, made.tokenizer, made.fingerprint);
    if (known.fingerprint.empty()) {
      known = made;
      known_prefix = prefix;
    }
    if (config.tokenizer.empty()) config.tokenizer = made.tokenizer;
    largest = std::max(largest, made.vocab);
  }
  if (names_field(config.overrides, "model.vocab")) return {};
  config.data_vocab = largest;
  return {};
}

// The model and the tokenizer of a folder of Hugging Face; its weights need not be there.
Result<void> look_at_folder(const std::string& folder, NewConfig& config) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const auto text = MappedFile::open(path);
  if (!text) return text.error();
  auto described = huggingface::parse_config_json(path, text.value().text());
  if (!described) return described.error();
  config.imported_model = described.value().model;
  config.model = path;
  if (!config.tokenizer.empty() || !config.data.empty()) return {};
  if (const auto tokenizer = huggingface::find_tokenizer(folder, config.imported_model->vocab); tokenizer)
    config.tokenizer = tokenizer.value();
  return {};
}

Result<void> make_new(NewOptions& options) {
  if (options.hf.empty() == options.config.model.empty()) return usage_error("give either --model NAME or --hf FOLDER");
  if (!options.hf.empty())
    if (auto looked = look_at_folder(options.hf, options.config); !looked) return looked;
  if (auto looked = look_at_data(options.config); !looked) return looked;
  auto cluster = options.cluster.empty() ? parse_cluster(preset_cluster_h100(), "the H100 cluster", {})
                                         : read_cluster(options.cluster);
  if (!cluster) return cluster.error();
  const auto text = new_config(options.config, cluster.value());
  if (!text) return text.error();
  if (const std::string remark = ffn_hidden_remark(options.config); !remark.empty()) print_err("note: {}\n", remark);
  if (!options.output.empty()) return write_new(options, text.value());
  print_out("{}", text.value());
  return {};
}

// Reads a config file, or the requested config of the run in a folder. Either may be of an earlier version.
Result<Config> read_config(const std::string& path) {
  std::error_code ignored;
  const std::string file =
      std::filesystem::is_directory(path, ignored) ? (std::filesystem::path(path) / "config.yaml").string() : path;
  const auto text = read_config_text(file);
  if (!text) return text.error();
  return parse_saved_config(text.value(), file);
}

// Returns whether the configs are equal.
Result<bool> diff(const std::string& a_path, const std::string& b_path, bool json) {
  const auto a = read_config(a_path), b = read_config(b_path);
  if (!a) return a.error();
  if (!b) return b.error();
  const std::vector<FieldChange> changes = changed_fields(a.value(), b.value(), Fields::kAll);
  if (json) {
    nlohmann::ordered_json fields = nlohmann::ordered_json::array();
    for (const FieldChange& c : changes) fields.push_back({{"field", c.name}, {"a", c.before}, {"b", c.after}});
    const nlohmann::ordered_json object = {
        {"a", a_path}, {"b", b_path}, {"equal", changes.empty()}, {"fields", fields}};
    print_object(object);
    return changes.empty();
  }
  for (const FieldChange& c : changes) print_out("{}: {} in A, {} in B\n", c.name, c.before, c.after);
  print_out("{}: {} {}\n", changes.empty() ? "EQUAL" : "DIFFERENT",
            counted(static_cast<int64_t>(changes.size()), "field"), changes.size() == 1 ? "differs" : "differ");
  return changes.empty();
}

void add_new(Command& config, int& status) {
  std::string names;
  for (const Preset& preset : presets()) names += (names.empty() ? "" : ",") + std::string(preset.name);
  // For help and completion: new_config refuses other names, with the nearest.
  const OptionRule known = shown_as("{" + names + "}");
  auto* command =
      config.add_subcommand("new", "Write a commented run config for a given model, number of GPUs and data");
  auto o = std::make_shared<NewOptions>();
  command->add_option("--model", o->config.model, "Preset to start from")->check(known);
  command->add_option("--hf", o->hf,
                      "Folder of a Hugging Face model: start from its config.json, trained as the preset " +
                          std::string(kTrainingPreset));
  command
      ->add_option("--gpus,--ranks", o->config.ranks,
                   "Number of GPUs; the config gets the layout that is predicted to be fastest on them")
      ->required();
  command->add_option("--data", o->config.data, "PREFIX of a token file; repeatable");
  command->add_option("--tokenizer", o->config.tokenizer,
                      "data.tokenizer; default: the tokenizer that the data were prepared with");
  command->add_option("--name", o->config.name, "run.name");
  command->add_option("--set", o->config.overrides, "section.key=value; repeatable");
  command->add_option("--cluster", o->cluster, "Cluster file; default: nodes of eight H100");
  command->add_option("--output", o->output,
                      "File to write, with the schema for editors next to it; default: standard output");
  command->add_flag("--force", o->force, "Overwrite an existing config");
  on_run(command, status, [o] { return make_new(*o); });
}

void add_config_diff(Command& config, int& status) {
  auto* command = config.add_subcommand(
      "diff", "List fields that differ between two run configs: exit status 0 if none differs, 1 if one does");
  auto a = std::make_shared<std::string>(), b = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command->add_option("a", *a, "A config file, or a run's folder")->required();
  command->add_option("b", *b, "The config file, or run's folder, to compare with")->required();
  command->add_flag("--json", *json, "Print one JSON object");
  on_answer(command, status, [=] { return diff(*a, *b, *json); });
}

}  // namespace

void add_config_command(Command& app, int& status) {
  auto* command = app.add_subcommand("config", "Make and compare run configs")->require_subcommand(1);
  add_new(*command, status);
  add_config_diff(*command, status);
}

}  // namespace tri
