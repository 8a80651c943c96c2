#include "lib/huggingface/export.h"

#include <filesystem>

#include "io/base/file.h"
#include "io/base/folder_entries.h"
#include "io/base/json.h"
#include "io/base/progress.h"
#include "io/checkpoint/shard_reader.h"
#include "io/safetensors.h"
#include "lib/checkpoint/weights.h"
#include "lib/huggingface/companions.h"
#include "lib/huggingface/elements.h"
#include "lib/huggingface/tokenizer_files.h"

namespace tri::huggingface {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kIndexName = "model.safetensors.index.json";

// Consecutive tensors that share a file.
struct File {
  size_t first = 0, end = 0;
  int64_t bytes = 0;
};

std::vector<File> divide(const std::vector<SafetensorsEntry>& entries, int64_t most) {
  std::vector<File> files(1);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (files.back().bytes > 0 && files.back().bytes + entries[i].bytes() > most) files.push_back({i, i, 0});
    files.back().end = i + 1;
    files.back().bytes += entries[i].bytes();
  }
  return files;
}

std::string file_name(size_t index, size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

class Source {
 public:
  Source(const CheckpointReader& reader, const ModelConfig& model, WeightSet weights)
      : reader_(reader), model_(model), weights_(weights) {}

  // Writes the tensor with the entry's type.
  Result<void> write(const Mapped& mapped, const SafetensorsEntry& entry, SafetensorsWriter& writer) {
    if (mapped.spec == nullptr) {
      const std::vector<char> zeros(static_cast<size_t>(entry.bytes()));
      writer.write(entry.name, zeros.data(), entry.bytes());
      return {};
    }
    if (auto loaded = load(*mapped.spec); !loaded) return loaded;
    if (entry.type == StoredType::kBf16)
      put<bf16>(mapped, entry, writer);
    else
      put<float>(mapped, entry, writer);
    return {};
  }

 private:
  // Several consecutive Hugging Face tensors may come from one native tensor.
  Result<void> load(const ParamSpec& spec) {
    if (loaded_ == &spec) return {};
    loaded_ = nullptr;
    values_.resize(static_cast<size_t>(spec.numel()));
    const TensorShard full{.tensor = weight_name(spec.name, weights_),
                           .shape = spec.shape,
                           .region = {Coordinates(spec.shape.size(), 0), spec.shape}};
    auto read = reader_.read(full, values_.data());
    if (read) loaded_ = &spec;
    return read;
  }

  template <class T>
  void put(const Mapped& mapped, const SafetensorsEntry& entry, SafetensorsWriter& writer) {
    std::vector<T> hf(static_cast<size_t>(entry.bytes()) / sizeof(T));
    const int64_t width = row_width(*mapped.spec);
    for_each_element(row_map(mapped, model_), width, mapped.form, [&](int64_t hf_index, int64_t native_index) {
      hf[static_cast<size_t>(hf_index)] = T(values_[static_cast<size_t>(native_index)]);
    });
    writer.write(entry.name, hf.data(), entry.bytes());
  }

  const CheckpointReader& reader_;
  const ModelConfig& model_;
  const WeightSet weights_;
  const ParamSpec* loaded_ = nullptr;
  std::vector<float> values_;
};

Result<void> begin_folder(const std::string& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) return file_error("{}: {}", folder, problem.message());
  for (const auto& entry : entries_of(folder, problem)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name.ends_with(".safetensors"))
      return file_error("{}: already contains a model ({}); name another folder, or remove it first", folder, name);
  }
  if (problem) return file_error("{}: {}", folder, problem.message());
  return {};
}

// Removes what a failed export has created: files that it wrote and folders that it made.
class Leftovers {
 public:
  explicit Leftovers(const std::string& folder) : folder_(folder) {
    std::error_code ignored;
    for (fs::path path = fs::absolute(folder, ignored); !path.empty() && !fs::exists(path, ignored);
         path = path.parent_path())
      made_.push_back(path);
  }
  ~Leftovers() {
    std::error_code ignored;
    if (is_whole_) return;
    for (const std::string& name : files_) fs::remove(fs::path(folder_) / name, ignored);
    // Removes empty folders only: another process may have added files in the meantime.
    for (const fs::path& path : made_)
      if (!fs::remove(path, ignored) || ignored) return;
  }

  void add(const std::string& file) { files_.push_back(file); }
  void keep() { is_whole_ = true; }

 private:
  const std::string folder_;
  std::vector<fs::path> made_;  // folders that did not exist before, the innermost first
  std::vector<std::string> files_;
  bool is_whole_ = false;
};

Result<void> write_index(const std::string& folder, const std::vector<File>& files,
                         const std::vector<SafetensorsEntry>& entries, int64_t bytes) {
  Json map = Json::object();
  for (size_t f = 0; f < files.size(); ++f)
    for (size_t i = files[f].first; i < files[f].end; ++i) map[entries[i].name] = file_name(f, files.size());
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  return write_file(folder + "/" + kIndexName, index.dump(2) + "\n");
}

}  // namespace

Result<ExportSummary> export_checkpoint(const ExportOptions& options) {
  auto reader = CheckpointReader::open(options.checkpoint);
  if (!reader) return reader.error();
  const Manifest& manifest = reader.value().manifest();
  if (auto held = check_weight_set(options.checkpoint, manifest, options.weights); !held) return held.error();
  const auto config = checkpoint_config(options.checkpoint, manifest);
  if (!config) return config.error();
  const ModelConfig& model = config.value().model;
  const std::string kept = companions_of(options.checkpoint, config.value());
  const auto format = weight_format_of(model, imported_model_type(kept));
  if (!format) return format.error();
  Leftovers leftovers(options.folder);
  if (auto begun = begin_folder(options.folder); !begun) return begun.error();

  const std::vector<ParamSpec> parameters = model_parameters(config.value());
  const std::vector<Mapped> tensors = map_tensors(*format.value(), model, parameters);
  const StoredType type = options.dtype == Dtype::kBF16 ? StoredType::kBf16 : StoredType::kF32;
  std::vector<SafetensorsEntry> entries;
  ExportSummary summary{.architecture = std::string(format.value()->architecture)};
  for (const Mapped& tensor : tensors) {
    entries.push_back({tensor.hf, type, tensor.shape});
    summary.bytes += entries.back().bytes();
  }
  const std::vector<File> files = divide(entries, options.max_shard_bytes);
  {
    ProgressBar progress("export", "B", summary.bytes);
    Source source(reader.value(), model, options.weights);
    for (size_t f = 0; f < files.size(); ++f) {
      leftovers.add(file_name(f, files.size()));
      auto writer = SafetensorsWriter::create(options.folder + "/" + file_name(f, files.size()),
                                              {entries.begin() + static_cast<int64_t>(files[f].first),
                                               entries.begin() + static_cast<int64_t>(files[f].end)},
                                              {{"format", "pt"}});
      if (!writer) return writer.error();
      for (size_t i = files[f].first; i < files[f].end; ++i) {
        if (auto written = source.write(tensors[i], entries[i], writer.value()); !written) return written.error();
        progress.add(entries[i].bytes());
      }
      if (auto done = writer.value().finish(); !done) return done.error();
    }
  }
  leftovers.add(kIndexName);
  if (files.size() > 1)
    if (auto done = write_index(options.folder, files, entries, summary.bytes); !done) return done.error();
  for (const char* file : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "config.json"})
    leftovers.add(file);
  for (const std::string& file : companions_in(kept)) {
    leftovers.add(file);
    if (const fs::path inside = fs::path(file).parent_path(); !inside.empty()) leftovers.add(inside.string());
  }
  const auto tokenizer = write_tokenizer(config.value(), options.folder, kept);
  if (!tokenizer) return tokenizer.error();
  summary.tensors = static_cast<int64_t>(entries.size());
  summary.files = static_cast<int64_t>(files.size());
  summary.tokenizer = tokenizer.value().summary;
  const auto id = [](int token) { return token < 0 ? "" : std::to_string(token); };
  Ends ends{.bos = id(tokenizer.value().bos), .eos = id(tokenizer.value().eos), .pad = ""};
  if (!kept.empty()) {
    ends = imported_ends(kept, std::move(ends));
    auto written = write_companions(kept, options.folder);
    if (!written) return written.error();
    summary.kept = std::move(written).value();
  }
  const std::string json =
      config_json(*format.value(), model, options.dtype, ends, tokenizer.value().name, manifest.step);
  if (auto done = write_file(options.folder + "/config.json", json); !done) return done.error();
  leftovers.keep();
  return summary;
}

}  // namespace tri::huggingface
