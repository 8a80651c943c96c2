#include "lib/checkpoint/retention.h"

#include "io/checkpoint/folder.h"
#include "lib/checkpoint/run_config.h"
#include "lib/checkpoint/weights.h"

namespace tri {
namespace {

Retention retention_in(const Config& config, const std::string& source) {
  return {config.checkpoint.keep_last, config.checkpoint.keep_every, source};
}

}  // namespace

Result<Retention> retention_of(const std::string& path) {
  const auto run = read_run_config(path);
  if (!run) return run.error();
  if (run.value()) return retention_in(run.value()->config, run.value()->path);
  const auto dir = find_checkpoints_folder(path);
  if (!dir) return dir.error();
  const auto newest = newest_checkpoint(dir.value());
  if (!newest) return newest.error();
  if (!newest.value()) return retention_in(Config{}, "the defaults");
  const std::string& folder = newest.value()->path;
  const auto manifest = read_manifest(folder);
  if (!manifest) return manifest.error();
  const auto config = checkpoint_config(folder, manifest.value());
  if (!config) return config.error();
  return retention_in(config.value(), folder + "'s config");
}

}  // namespace tri
