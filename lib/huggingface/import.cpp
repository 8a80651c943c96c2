#include "lib/huggingface/import.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/progress.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/run_lock.h"
#include "io/checkpoint/shard_writer.h"
#include "io/safetensors.h"
#include "io/tokens/tokenizer.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/utf8_text.h"
#include "lib/huggingface/companions.h"
#include "lib/huggingface/elements.h"
#include "lib/huggingface/tokenizer_files.h"

namespace tri::huggingface {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// All tensors of a model, in one or several files.
class HfWeights {
 public:
  static Result<HfWeights> open(const std::string& folder) {
    const auto names = file_names(folder);
    if (!names) return names.error();
    HfWeights hf;
    for (const std::string& name : names.value()) {
      auto file = SafetensorsFile::open(folder + "/" + name);
      if (!file) return file.error();
      hf.files_.push_back(std::make_unique<SafetensorsFile>(std::move(file).value()));
      hf.paths_.push_back(folder + "/" + name);
      for (const SafetensorsEntry& entry : hf.files_.back()->entries())
        if (!hf.places_.emplace(entry.name, Place{hf.files_.size() - 1, &entry}).second)
          return file_error("{}: tensor {} is also in another file of this model", hf.paths_.back(), entry.name);
    }
    return hf;
  }

  struct Found {
    const SafetensorsEntry* entry = nullptr;  // null: not found
    const std::string* path = nullptr;
    std::span<const std::byte> data;
  };
  // Finds a tensor by its name, or by the name without `prefix`. Marks it as used.
  Found find(const std::string& name, std::string_view prefix) {
    const Found found = look_up(name, prefix);
    if (found.entry != nullptr) used_.insert(found.entry->name);
    return found;
  }
  // Finds a tensor without marking it.
  Found look_up(const std::string& name, std::string_view prefix) const {
    auto at = places_.find(name);
    if (at == places_.end() && name.starts_with(prefix)) at = places_.find(name.substr(prefix.size()));
    if (at == places_.end()) return {};
    const auto& [file, entry] = at->second;
    return {entry, &paths_[file], files_[file]->data(*entry)};
  }

  // Returns the first unused tensor that is not in `ignored` (names, or their ends after a dot), or "".
  std::string left_over(const std::vector<std::string_view>& ignored) const {
    for (const auto& [name, place] : places_) {
      const auto ends = [&name = name](std::string_view end) {
        return name == end || (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
      };
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
    // If both exist, transformers also reads the single file.
    if (fs::exists(folder + "/model.safetensors", ignored)) return std::vector<std::string>{"model.safetensors"};
    if (!fs::exists(index, ignored))
      return file_error(
          "{}: neither model.safetensors nor model.safetensors.index.json; convert a model in another format by "
          "saving it with transformers: model.save_pretrained(folder)",
          folder);
    auto text = MappedFile::open(index);
    if (!text) return text.error();
    try {
      std::set<std::string> names;
      const Json json = parse_json<Json>(text.value().text());
      if (!json.is_object() || !json.contains("weight_map"))
        return file_error("{}: weight_map is missing; it names the file of each tensor", index);
      for (const auto& [tensor, file] : json.at("weight_map").items()) {
        const auto name = file.get<std::string>();
        if (name.find('/') != std::string::npos)
          return file_error("{}: lists {}, which is not in this folder", index, name);
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

// Calls use(value_at), where value_at(i) is element i of `found` as a float. Fails if its type is not a weight's.
template <class Use>
Result<void> with_values(const HfWeights::Found& found, const Use& use) {
  const auto read_as = [&]<class T>(T, auto to_float) {
    use([&](int64_t i) {
      T value;
      std::memcpy(&value, found.data.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      return to_float(value);
    });
    return Result<void>();
  };
  const SafetensorsEntry& entry = *found.entry;
  if (entry.is_readable() && entry.type == StoredType::kF32) return read_as(0.0f, [](float value) { return value; });
  if (entry.is_readable() && entry.type == StoredType::kBf16)
    return read_as(bf16(), [](bf16 value) { return static_cast<float>(value); });
  if (entry.is_readable() && entry.type == StoredType::kF16)
    return read_as(uint16_t{}, [](uint16_t value) { return float_of_half(value); });
  return file_error("{}: tensor {} is {}; weights must be F32, BF16 or F16", *found.path, entry.name, entry.dtype());
}

std::string name_of(const WeightFormat& format, std::string_view module) {
  const auto rule = std::find_if(format.tensors.begin(), format.tensors.end(),
                                 [&](const TensorRule& r) { return r.module == module; });
  TRI_REQUIRE(rule != format.tensors.end(), "{} has no rule for {}", format.architecture, module);
  return std::string(rule->hf);
}

// What a folder with tied embeddings contains for the head and the embedding.
enum class TiedHead {
  kAbsent,
  kSame,       // a copy of the embedding
  kOther,      // other values, in which case transformers does not tie them
  kEmbedding,  // only the head, which serves as the embedding
};

Result<TiedHead> tied_head(const HfWeights& hf, const WeightFormat& format) {
  const HfWeights::Found head = hf.look_up(name_of(format, modules::kHead), format.prefix);
  if (head.entry == nullptr) return TiedHead::kAbsent;
  const HfWeights::Found embedding = hf.look_up(name_of(format, modules::kTokens), format.prefix);
  if (embedding.entry == nullptr) return TiedHead::kEmbedding;
  if (head.entry->shape != embedding.entry->shape) return TiedHead::kOther;
  bool same = true;
  Result<void> inner;
  const auto outer = with_values(head, [&](auto head_at) {
    inner = with_values(embedding, [&](auto embedding_at) {
      const int64_t count = num_elements(head.entry->shape);
      for (int64_t i = 0; i < count && same; ++i) same = head_at(i) == embedding_at(i);
    });
  });
  for (const Result<void>& read : {inner, outer})
    if (!read) return read.error();
  return same ? TiedHead::kSame : TiedHead::kOther;
}

// Copies a Hugging Face tensor into its positions in `native`.
Result<void> place(const HfWeights::Found& found, const Mapped& mapped, const ModelConfig& model,
                   std::vector<float>& native) {
  const SafetensorsEntry& entry = *found.entry;
  if (entry.shape != mapped.shape)
    return file_error("{}: tensor {} is {}, expected {}", *found.path, entry.name, to_string(entry.shape),
                      to_string(mapped.shape));
  const int64_t width = row_width(*mapped.spec);
  const std::vector<int64_t> rows = row_map(mapped, model);
  return with_values(found, [&](auto value_at) {
    for_each_element(rows, width, mapped.form, [&](int64_t hf_index, int64_t native_index) {
      native[static_cast<size_t>(native_index)] = value_at(hf_index);
    });
  });
}

// Returns a run's config for the model, with its tokenizer if this program supports it.
Result<Config> run_config(const ImportOptions& options, const Described& described, ImportSummary& summary) {
  Config config;
  config.model = described.model;
  const std::string name = fs::path(options.run_dir).lexically_normal().filename().string();
  config.run.dir = options.run_dir;
  if (!name.empty() && name != "." && name != "..") config.run.name = name;
  const bool bytes = described.tokenizer == "bytes";  // the native default
  if (bytes) {
    summary.tokenizer = described.tokenizer;
  } else if (const auto path = find_tokenizer(options.folder, config.model.vocab); !path) {
    summary.tokenizer = path.error().message;
  } else {
    summary.tokenizer = config.data.tokenizer = tokenizer_copy(path.value(), options.run_dir);
  }
  if (!bytes && config.data.tokenizer == "bytes") config.run.sample_tokens = 0;  // samples would not be readable text
  return parse_config(to_yaml(config), options.folder, options.overrides);
}

Result<ShardRecord> write_weights(HfWeights& hf, const WeightFormat& format, const Config& config, TiedHead head,
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
      const bool is_head = head == TiedHead::kEmbedding && mapped.hf == name_of(format, modules::kTokens);
      const HfWeights::Found found = hf.find(is_head ? name_of(format, modules::kHead) : mapped.hf, format.prefix);
      if (found.entry == nullptr) return file_error("tensor {} is missing", mapped.hf);
      if (auto placed = place(found, mapped, config.model, values); !placed) return placed.error();
    }
    const TensorShard full{.tensor = weight_name(spec.name),
                           .shape = spec.shape,
                           .region = {Coordinates(spec.shape.size(), 0), spec.shape}};
    if (auto added = writer.value().add(full, values.data()); !added) return added.error();
    progress.add(4 * spec.numel());
  }
  summary.tensors = static_cast<int64_t>(parameters.size());
  std::vector<std::string_view> ignored(format.ignored.begin(), format.ignored.end());
  const std::string head_name = name_of(format, modules::kHead);
  if (head == TiedHead::kSame) ignored.push_back(head_name);
  if (const std::string name = hf.left_over(ignored); !name.empty())
    return file_error("tensor {} is not part of {}", name, format.architecture);
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
  // The checkpoint names the first, the config the second.
  if (auto named = check_utf8({options.folder, options.run_dir}); !named) return named.error();
  const std::string json_path = options.folder + "/config.json";
  auto json = MappedFile::open(json_path);
  if (!json) return json.error();
  auto described = parse_config_json(json_path, json.value().text());
  if (!described) return described.error();
  const WeightFormat& format = *described.value().format;
  ImportSummary summary{.architecture = std::string(format.architecture)};
  auto hf = HfWeights::open(options.folder);
  if (!hf) return hf.error();
  TiedHead head = TiedHead::kAbsent;
  if (described.value().model.tie_embeddings) {
    const auto found = tied_head(hf.value(), format);
    if (!found) return found.error();
    head = found.value();
  }
  if (head == TiedHead::kOther) {
    described.value().model.tie_embeddings = false;
    summary.head = fmt::format(
        "{} differs from the embedding, so the two are not tied, although config.json says "
        "tie_word_embeddings: true; transformers does the same",
        name_of(format, modules::kHead));
  }
  auto config = run_config(options, described.value(), summary);
  if (!config) return config.error();
  auto resolved = resolve_config(config.value(), 1);
  if (!resolved) return Error{json_path + ": " + resolved.error().message, resolved.error().code};
  if (resolved.value().model.tie_embeddings && !described.value().model.tie_embeddings)
    return usage_error("model.tie_embeddings: true would drop {}; set it to false", name_of(format, modules::kHead));

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
    return file_error("{}: already contains a run; name another folder", options.run_dir);

  auto folder = begin_attempt(dir, 0, attempt);
  if (!folder) return folder.error();
  const auto record =
      write_weights(hf.value(), format, resolved.value(), head, folder.value() + "/" + shard_name(0), attempt, summary);
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
  auto kept = keep_companions(options.folder, options.run_dir);
  if (!kept) return kept.error();
  summary.kept = std::move(kept).value();
  config.value().model = resolved.value().model;  // the other fields are resolved for the ranks that will train
  if (auto done = write_file(summary.config, to_yaml(config.value())); !done) return done.error();
  return summary;
}

}  // namespace tri::huggingface
