#include "lib/huggingface/import.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/base/file.h"
#include "io/base/progress.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/run_lock.h"
#include "io/checkpoint/shard_writer.h"
#include "io/safetensors.h"
#include "io/tokens/tokenizer.h"
#include "lib/checkpoint/weights.h"
#include "lib/huggingface/elements.h"
#include "lib/huggingface/tokenizer_files.h"

namespace tri::huggingface {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// All tensors of a model, whatever files they are in.
class Theirs {
 public:
  static Result<Theirs> open(const std::string& folder) {
    const auto names = file_names(folder);
    if (!names) return names.error();
    Theirs theirs;
    for (const std::string& name : names.value()) {
      auto file = SafetensorsFile::open(folder + "/" + name);
      if (!file) return file.error();
      theirs.files_.push_back(std::make_unique<SafetensorsFile>(std::move(file).value()));
      theirs.paths_.push_back(folder + "/" + name);
      for (const SafetensorsEntry& entry : theirs.files_.back()->entries())
        if (!theirs.places_.emplace(entry.name, Place{theirs.files_.size() - 1, &entry}).second)
          return file_error("{}: tensor {} is in another file too", theirs.paths_.back(), entry.name);
    }
    return theirs;
  }

  struct Found {
    const SafetensorsEntry* entry = nullptr;  // null: there is none
    const std::string* path = nullptr;
    std::span<const std::byte> data;
  };
  // By its name, or the name without `prefix`. Remembers that it was asked for.
  Found find(const std::string& name, std::string_view prefix) {
    auto at = places_.find(name);
    if (at == places_.end() && name.starts_with(prefix)) at = places_.find(name.substr(prefix.size()));
    if (at == places_.end()) return {};
    used_.insert(at->first);
    const auto& [file, entry] = at->second;
    return {entry, &paths_[file], files_[file]->data(*entry)};
  }

  // The first tensor that nobody asked for and that is not one of `ignored` (ends of names); "" = none.
  std::string left_over(const std::vector<std::string_view>& ignored) const {
    for (const auto& [name, place] : places_) {
      const auto ends = [&name = name](std::string_view end) { return name.ends_with(end); };
      if (!used_.contains(name) && std::none_of(ignored.begin(), ignored.end(), ends)) return name;
    }
    return "";
  }

 private:
  struct Place {
    size_t file;
    const SafetensorsEntry* entry;
  };

  static Result<std::vector<std::string>> file_names(const std::string& folder) {
    std::error_code ignored;
    const std::string index = folder + "/model.safetensors.index.json";
    if (!fs::exists(index, ignored)) {
      if (fs::exists(folder + "/model.safetensors", ignored)) return std::vector<std::string>{"model.safetensors"};
      return file_error(
          "{}: neither model.safetensors nor model.safetensors.index.json; models in other formats can be saved anew "
          "with transformers: model.save_pretrained(folder)",
          folder);
    }
    auto text = MappedFile::open(index);
    if (!text) return text.error();
    try {
      std::set<std::string> names;
      const Json json = Json::parse(text.value().text());
      for (const auto& [tensor, file] : json.at("weight_map").items()) {
        const auto name = file.get<std::string>();
        if (name.find('/') != std::string::npos) return file_error("{}: {}: not in this folder", index, name);
        names.insert(name);
      }
      return std::vector<std::string>(names.begin(), names.end());
    } catch (const Json::exception& problem) {
      return file_error("{}: {}", index, problem.what());
    }
  }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> paths_;
  std::map<std::string, Place> places_;
  std::set<std::string> used_;
};

// Puts one of theirs into its places in `ours`.
Result<void> place(const Theirs::Found& found, const Mapped& mapped, const ModelConfig& model,
                   std::vector<float>& ours) {
  const SafetensorsEntry& entry = *found.entry;
  if (entry.shape != mapped.shape)
    return file_error("{}: tensor {} is {}, expected {}", *found.path, entry.name, to_string(entry.shape),
                      to_string(mapped.shape));
  const int64_t width = row_width(*mapped.spec);
  const std::vector<int64_t> rows = row_map(mapped.rows, model, mapped.spec->numel() / width);
  const auto move = [&]<class T>(T, auto to_float) {
    for_each_element(rows, width, mapped.form, [&](int64_t their, int64_t our) {
      T value;
      std::memcpy(&value, found.data.data() + their * static_cast<int64_t>(sizeof(T)), sizeof(T));
      ours[static_cast<size_t>(our)] = to_float(value);
    });
    return Result<void>();
  };
  switch (entry.type) {
    case StoredType::kF32:
      return move(0.0f, [](float value) { return value; });
    case StoredType::kBf16:
      return move(bf16(), [](bf16 value) { return static_cast<float>(value); });
    case StoredType::kF16:
      return move(uint16_t{}, [](uint16_t value) { return float_of_half(value); });
    default:
      return file_error("{}: tensor {} is {}; weights are f32, bf16 or f16", *found.path, entry.name,
                        enum_name(entry.type));
  }
}

// A run's config around the model; its tokenizer, if it is one of ours.
Result<Config> run_config(const ImportOptions& options, const Described& described, ImportSummary& summary) {
  Config config;
  config.model = described.model;
  const std::string name = fs::path(options.run_dir).lexically_normal().filename().string();
  config.run.dir = options.run_dir;
  if (!name.empty() && name != "." && name != "..") config.run.name = name;
  const bool bytes = described.tokenizer == "bytes";  // our default
  if (bytes) {
    summary.tokenizer = described.tokenizer;
  } else if (const auto path = find_tokenizer(options.folder, config.model.vocab); !path) {
    summary.tokenizer = path.error().message;
  } else {
    summary.tokenizer = config.data.tokenizer = tokenizer_copy(path.value(), options.run_dir);
  }
  if (!bytes && config.data.tokenizer == "bytes") config.run.sample_tokens = 0;  // they would not be text
  return parse_config(to_yaml(config), options.folder, options.overrides);
}

Result<ShardRecord> write_weights(Theirs& theirs, const WeightFormat& format, const Config& config,
                                  const std::string& path, const std::string& attempt, ImportSummary& summary) {
  const std::vector<ParamSpec> parameters = model_parameters(config);
  const std::vector<Mapped> tensors = map_tensors(format, config.model, parameters);
  auto writer = ShardWriter::create(path, attempt);
  if (!writer) return writer.error();
  for (const ParamSpec& spec : parameters) summary.bytes += 4 * spec.numel();
  ProgressBar progress("import", "B", summary.bytes);
  std::vector<float> values;
  for (const ParamSpec& spec : parameters) {
    values.assign(static_cast<size_t>(spec.numel()), 0.0f);  // the vocabulary's padding stays zero
    for (const Mapped& mapped : tensors) {
      if (mapped.spec != &spec) continue;
      const Theirs::Found found = theirs.find(mapped.theirs, format.prefix);
      if (found.entry == nullptr) return file_error("tensor {} is missing", mapped.theirs);
      if (auto placed = place(found, mapped, config.model, values); !placed) return placed.error();
    }
    const Piece full{.tensor = weight_name(spec.name),
                     .shape = spec.shape,
                     .region = {Coordinates(spec.shape.size(), 0), spec.shape}};
    if (auto added = writer.value().add(full, values.data()); !added) return added.error();
    progress.add(4 * spec.numel());
  }
  summary.tensors = static_cast<int64_t>(parameters.size());
  std::vector<std::string_view> ignored(format.ignored.begin(), format.ignored.end());
  if (config.model.tie_embeddings) ignored.push_back("lm_head.weight");
  if (const std::string name = theirs.left_over(ignored); !name.empty())
    return file_error("tensor {} has no place in {}", name, format.architecture);
  return writer.value().finish();
}

Result<void> publish_weights(const std::string& dir, const std::string& attempt, const Config& resolved,
                             const std::string& from, const ShardRecord& record) {
  Manifest manifest{.attempt = attempt, .step = 0};
  manifest.info.texts = {{"config", to_yaml(resolved)}, {"layout", "weights alone, imported"}, {kWeightsAlone, from}};
  manifest.info.numbers = {{"samples", 0}};
  if (auto added = manifest.add(record); !added) return added;
  const std::string folder = attempt_folder(dir, 0, attempt);
  auto index = write_index(folder, manifest);
  if (!index) return index.error();
  manifest.files.push_back(index.value());
  if (auto written = write_manifest(folder, manifest); !written) return written;
  return publish(dir, 0, attempt);
}

}  // namespace

Result<ImportSummary> import_model(const ImportOptions& options) {
  const std::string json_path = options.folder + "/config.json";
  auto json = MappedFile::open(json_path);
  if (!json) return json.error();
  const auto described = parse_config_json(json_path, json.value().text());
  if (!described) return described.error();
  const WeightFormat& format = *described.value().format;
  ImportSummary summary{.architecture = std::string(format.architecture)};
  auto config = run_config(options, described.value(), summary);
  if (!config) return config.error();
  auto resolved = resolve_config(config.value(), 1);
  if (!resolved) return Error{json_path + ": " + resolved.error().message, resolved.error().code};
  auto theirs = Theirs::open(options.folder);
  if (!theirs) return theirs.error();

  std::error_code problem;
  fs::create_directories(options.run_dir, problem);
  if (problem) return file_error("{}: {}", options.run_dir, problem.message());
  const std::string attempt = new_attempt(), dir = resolved.value().checkpoint.dir;
  auto lock = RunLock::take({.run = options.run_dir, .checkpoints = dir}, attempt);
  if (!lock) return lock.error();
  const auto present = list_checkpoints(dir);
  if (!present) return present.error();
  summary.config = options.run_dir + "/config.yaml";
  if (!present.value().empty() || fs::exists(summary.config, problem))
    return file_error("{}: a run has begun here; name another folder", options.run_dir);

  auto folder = begin_attempt(dir, 0, attempt);
  if (!folder) return folder.error();
  const auto record =
      write_weights(theirs.value(), format, resolved.value(), folder.value() + "/" + shard_name(0), attempt, summary);
  const Result<void> published = record
                                     ? publish_weights(dir, attempt, resolved.value(), options.folder, record.value())
                                     : Result<void>(record.error());
  if (!published) {
    fs::remove_all(folder.value(), problem);
    return Error{options.folder + ": " + published.error().message, published.error().code};
  }
  summary.checkpoint = dir + "/" + step_name(0);
  if (const std::string path = tokenizer_file(options.folder);
      path != options.folder && config.value().data.tokenizer == tokenizer_copy(path, options.run_dir))
    if (auto copied = copy_tokenizer(path, options.run_dir); !copied) return copied.error();
  config.value().model = resolved.value().model;  // the rest stays open for the ranks that will train
  if (auto done = write_file(summary.config, to_yaml(config.value())); !done) return done.error();
  return summary;
}

}  // namespace tri::huggingface
