#include "lib/checkpoint/weights.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>

#include "io/base/parallel.h"
#include "io/checkpoint/folder.h"

namespace tri {
namespace {

// Read at once into host memory; a tensor that is larger stands alone.
constexpr int64_t kGroupBytes = int64_t{1} << 30;

Result<std::string> newest_of(const std::string& dir) {
  const auto newest = newest_checkpoint(dir);
  if (!newest) return newest.error();
  return newest.value() ? newest.value()->path : std::string();
}

// The checkpoint's tensor and this rank's part of it.
Piece piece_of(const ParamSpec& spec, Axis tp, const Manifest& manifest) {
  Piece piece{.tensor = weight_name(spec.name), .shape = spec.shape};
  piece.region = {.start = Coordinates(spec.shape.size(), 0), .extent = spec.local_shape(tp.size)};
  if (spec.split_dim >= 0) {
    const auto dim = static_cast<size_t>(spec.split_dim);
    piece.region.start[dim] = tp.rank * piece.region.extent[dim];
  }
  const TensorRecord* stored = manifest.find(piece.tensor);
  const bool positions = spec.name == weight_of(modules::kPositions);
  if (positions && stored != nullptr && stored->shape.size() == 2 && stored->shape[0] > piece.shape[0])
    piece.shape[0] = stored->shape[0];
  return piece;
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

Result<std::string> find_checkpoint(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return file_error("{}: no such folder; name a checkpoint or a run", path);
  if (fs::exists(path + "/" + kManifestName, ignored)) return path;
  std::string dir = path + "/checkpoints";
  for (const char* name : {"/resolved.yaml", "/config.yaml"}) {  // an imported model has the latter alone
    if (!fs::exists(path + name, ignored)) continue;
    const auto text = read_config_text(path + name);
    if (!text) return text.error();
    const auto config = parse_config(text.value(), path + name, {});
    if (!config) return config.error();
    // A run folder that was moved keeps its checkpoints inside.
    if (!fs::is_directory(dir, ignored) && !config.value().checkpoint.dir.empty()) dir = config.value().checkpoint.dir;
    break;
  }
  for (const std::string& candidate : {path, dir}) {
    auto newest = newest_of(candidate);
    if (!newest || !newest.value().empty()) return newest;
  }
  return file_error("{}: neither a checkpoint nor a folder that holds one; looked in {} too", path, dir);
}

Result<Config> checkpoint_config(const std::string& folder, const Manifest& manifest) {
  const auto text = manifest.info.texts.find("config");
  if (text == manifest.info.texts.end()) return file_error("{}: the checkpoint does not say its config", folder);
  return parse_config(text->second, folder + "'s config", {});
}

std::string weight_name(const std::string& parameter) { return "model/" + parameter; }

bool holds_weights_alone(const Manifest& manifest) { return manifest.info.texts.contains(kWeightsAlone); }

Result<void> load_weights(const CheckpointReader& reader, Axis tp,
                          const std::vector<std::vector<Parameter>>& parameters, Stream& stream) {
  std::vector<const Parameter*> all;
  for (const auto& chunk : parameters)
    for (const Parameter& parameter : chunk) all.push_back(&parameter);
  for (size_t first = 0; first < all.size();) {
    size_t end = first;
    for (int64_t bytes = 0; end < all.size() && (end == first || bytes < kGroupBytes); ++end)
      bytes += 4 * all[end]->weight.numel();
    std::vector<std::vector<float>> values(end - first);
    std::mutex mutex;
    Result<void> result;  // guarded by mutex
    std::atomic<size_t> next{first};
    parallel_ranges(static_cast<int64_t>(end - first), 1, [&](int64_t, int64_t) {
      for (size_t i = next++; i < end; i = next++) {
        values[i - first].resize(static_cast<size_t>(all[i]->weight.numel()));
        const auto read = reader.read(piece_of(all[i]->spec, tp, reader.manifest()), values[i - first].data());
        if (read) continue;
        const std::lock_guard lock(mutex);
        if (result) result = read;
      }
    });
    if (!result) return result;
    for (size_t i = first; i < end; ++i) copy_to(all[i]->weight, values[i - first], stream);
    first = end;
  }
  return {};
}

}  // namespace tri
