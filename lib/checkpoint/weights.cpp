#include "lib/checkpoint/weights.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "io/base/log.h"
#include "io/base/parallel.h"
#include "io/checkpoint/folder.h"
#include "lib/checkpoint/load.h"
#include "lib/checkpoint/run_config.h"
#include "lib/config/changes.h"

namespace tri {
namespace {

// Bytes that are read into host memory at a time; a larger tensor is read by itself.
constexpr int64_t kGroupBytes = int64_t{1} << 30;
constexpr const char* kWeightPrefix = "model/";
constexpr const char* kAveragePrefix = "ema/";

Result<std::string> newest_of(const std::string& dir) {
  const auto newest = newest_checkpoint(dir);
  if (!newest && newest.error().os_error == kOtherFormat)
    return file_error("{}, or name the folder of an older one in this command (trireme checkpoint list {})",
                      newest.error().message, dir);
  if (!newest) return newest.error();
  return newest.value() ? newest.value()->path : std::string();
}

bool are_positions(const ParamSpec& spec) { return spec.name == weight_of(modules::kPositions); }

// Returns the number of rows of the checkpoint's position table, or 0 if it has none.
int64_t stored_positions(const Manifest& manifest) {
  const TensorRecord* stored = manifest.find(weight_name(weight_of(modules::kPositions)));
  return stored != nullptr && stored->shape.size() == 2 ? stored->shape[0] : 0;
}

// Returns the checkpoint's tensor and this rank's part of it.
TensorShard tensor_shard_of(const ParamSpec& spec, WeightSet set, const Mesh& mesh, int64_t positions) {
  TensorShard shard{.tensor = weight_name(spec.name, set), .shape = spec.shape};
  shard.region = {.start = Coordinates(spec.shape.size(), 0), .extent = spec.local_shape(mesh)};
  if (spec.split_dim >= 0) {
    const auto dim = static_cast<size_t>(spec.split_dim);
    shard.region.start[dim] = spec.shard(mesh).rank * shard.region.extent[dim];
  }
  if (are_positions(spec)) shard.shape[0] = std::max(shard.shape[0], positions);
  return shard;
}

void copy_to(const Tensor& weight, const std::vector<float>& values, Stream& stream) {
  if (weight.dtype == Dtype::kF32) {
    stream.copy(weight.data, values.data(), weight.bytes());
    return stream.synchronize();
  }
  std::vector<bf16> rounded(values.size());
  parallel_ranges(static_cast<int64_t>(values.size()), 1 << 20, [&](int64_t begin, int64_t end) {
    std::transform(values.begin() + begin, values.begin() + end, rounded.begin() + begin,
                   [](float value) { return bf16(value); });
  });
  stream.copy(weight.data, rounded.data(), weight.bytes());
  stream.synchronize();
}

}  // namespace

Result<std::string> find_checkpoints_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return file_error("{}: no such folder; name a checkpoint or a run", path);
  std::string dir = path + "/checkpoints";
  if (fs::is_directory(dir, ignored)) return dir;  // a run folder that was moved contains its checkpoints
  const auto run = read_run_config(path);
  if (!run) return run.error();
  if (!run.value()) return path;
  const std::string& named = run.value()->config.checkpoint.dir;
  return named.empty() ? dir : named;
}

Result<std::string> find_checkpoint(const std::string& path) {
  const auto dir = find_checkpoints_folder(path);
  if (!dir) return dir;
  std::error_code ignored;
  if (std::filesystem::exists(path + "/" + kManifestName, ignored)) return path;
  for (const std::string& candidate : {path, dir.value()}) {
    auto newest = newest_of(candidate);
    if (!newest || !newest.value().empty()) return newest;
  }
  if (std::filesystem::exists(path + "/config.json", ignored))
    return file_error(
        "{}: this is a Hugging Face model, not a checkpoint; convert it with trireme checkpoint import {} RUN_DIR",
        path, path);
  return file_error("{}: this is neither a checkpoint nor a folder that contains one{}", path,
                    dir.value() == path ? "" : "; " + dir.value() + " was searched too");
}

Result<Config> checkpoint_config(const std::string& folder, const Manifest& manifest) {
  const auto text = manifest.info.texts.find("config");
  if (text == manifest.info.texts.end()) return file_error("{}: the checkpoint does not contain its config", folder);
  auto config = parse_saved_config(text->second, folder + "'s config");
  // The config was resolved by an earlier version, which did not know all of the sizes.
  if (config && config.value().model.kv_heads > 0) fill_derived(config.value().model);
  return config;
}

std::string weight_name(const std::string& parameter, WeightSet set) {
  return (set == WeightSet::kAverage ? kAveragePrefix : kWeightPrefix) + parameter;
}

bool holds_average(const Manifest& manifest) {
  return std::ranges::any_of(manifest.tensors,
                             [](const TensorRecord& t) { return t.name.starts_with(kAveragePrefix); });
}

Result<void> check_weight_set(const std::string& folder, const Manifest& manifest, WeightSet set) {
  if (set == WeightSet::kLast || holds_average(manifest)) return {};
  return usage_error(
      "{}: the checkpoint has no average of the weights, because its run did not set optimizer.ema; omit --ema to use "
      "the weights themselves",
      folder);
}

bool holds_weights_alone(const Manifest& manifest) { return manifest.info.texts.contains(kWeightsAlone); }

namespace {

// Like check_weights(), for a config that may not be resolved, on one rank.
Result<void> holds_model(const OpenedCheckpoint& checkpoint, Config config) {
  config.parallel = {};
  config.data.batch_ramp.clear();
  config.run.tokens = 0;
  config.data.global_batch = config.data.micro_batch = 1;
  const auto resolved = resolve_config(std::move(config), 1);
  if (!resolved) return resolved.error();
  return check_weights(checkpoint, resolved.value());
}

}  // namespace

Result<void> check_model(const OpenedCheckpoint& checkpoint, const Config& trained, const Config& config) {
  const std::string& folder = checkpoint.folder;
  std::string reported, refused, names;
  for (const FieldChange& change : changed_fields(trained, config)) {
    if (change.on_resume != OnResume::kFixed || !change.name.starts_with("model.")) continue;
    const bool accepted = accepts_change(config, change.name);
    (accepted ? reported : refused) += fmt::format("\n  {}: {}, now {}", change.name, change.before, change.after);
    if (!accepted) names += (names.empty() ? "" : ",") + change.name;
  }
  if (!refused.empty() && checkpoint.manifest)
    if (const auto holds = holds_model(checkpoint, config); !holds)
      return usage_error("{} was trained with a different model:{}\n{}", folder, refused, holds.error().message);
  if (!refused.empty())
    return usage_error(
        "{} was trained with a different model:{}\nrestore these fields or, if the change is intended, set "
        "checkpoint.accept_changes to {}",
        folder, refused, names);
  if (!reported.empty())
    log_warn("{} was trained with a different model (accepted by checkpoint.accept_changes):{}", folder, reported);
  return {};
}

Result<void> check_weights(const OpenedCheckpoint& checkpoint, const Config& config) {
  const Manifest& manifest = *checkpoint.manifest;
  const int64_t positions = stored_positions(manifest);
  std::unordered_set<std::string> used;
  for (const ParamSpec& spec : model_parameters(config)) {
    const TensorShard shard = tensor_shard_of(spec, WeightSet::kLast, make_mesh(0, {}), positions);
    if (const auto found = manifest.find(shard.tensor, shard.type, shard.shape); !found)
      return usage_error("{}: {}; set model.* as it was in training", checkpoint.folder, found.error().message);
    used.insert(shard.tensor);
  }
  for (const TensorRecord& tensor : manifest.tensors)
    if (tensor.name.starts_with(kWeightPrefix) && !used.contains(tensor.name))
      return usage_error("{}: the config's model has no {}; set model.* as it was in training", checkpoint.folder,
                         tensor.name);
  return {};
}

// Ranks of a stage hold tensors with the same names and shapes, so they read shared tensors in the same iteration.
Result<void> load_weights(const OpenedCheckpoint& checkpoint, const Mesh& mesh,
                          const std::vector<std::vector<Parameter>>& parameters, Stream& stream, Job& job) {
  const Manifest* manifest = checkpoint.manifest ? &*checkpoint.manifest : nullptr;
  const auto positions = job.broadcast(manifest != nullptr ? stored_positions(*manifest) : int64_t{0});
  std::vector<const Parameter*> all;
  for (const auto& chunk : parameters)
    for (const Parameter& parameter : chunk) all.push_back(&parameter);
  for (size_t first = 0; !job.all_of(first == all.size());) {
    std::vector<TensorShard> shards;
    std::vector<std::vector<float>> values;
    size_t end = first;
    for (int64_t bytes = 0; end < all.size() && (end == first || bytes < kGroupBytes); ++end) {
      bytes += 4 * all[end]->weight.numel();
      shards.push_back(tensor_shard_of(all[end]->spec, checkpoint.weights, mesh, positions));
      values.emplace_back(static_cast<size_t>(all[end]->weight.numel()));
    }
    std::vector<LoadTarget> targets;
    for (size_t i = 0; i < shards.size(); ++i)
      targets.push_back({&shards[i], reinterpret_cast<char*>(values[i].data())});
    const auto share = plan_load(manifest, targets, job);
    if (!share) return file_error("{}: {}", checkpoint.folder, share.error().message);
    if (auto read = load_shards(checkpoint.folder, share.value(), targets, job); !read) return read.error();
    for (size_t i = 0; i < shards.size(); ++i) copy_to(all[first + i]->weight, values[i], stream);
    first = end;
  }
  return {};
}

}  // namespace tri
