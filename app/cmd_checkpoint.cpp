// trireme checkpoint: what is in a folder of checkpoints.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "app/commands.h"
#include "io/base/progress.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/shard_reader.h"
#include "io/checkpoint/verify.h"
#include "lib/observe/metrics.h"

namespace tri {
namespace {

int64_t total_bytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const FileRecord& file : manifest.files) bytes += file.bytes;
  return bytes;
}

Result<void> list(const std::string& dir) {
  const auto entries = list_checkpoints(dir);
  if (!entries) return entries.error();
  for (const CheckpointEntry& entry : entries.value()) {
    if (!entry.valid) {
      std::printf("%-48s invalid: %s\n", entry.path.c_str(), entry.why.c_str());
      continue;
    }
    const auto manifest = read_manifest(entry.path);
    if (!manifest) return manifest.error();
    const auto layout = manifest.value().info.texts.find("layout");
    std::printf("%-48s %10s in %zu files, %s\n", entry.path.c_str(),
                format_bytes(total_bytes(manifest.value())).c_str(), manifest.value().files.size(),
                layout == manifest.value().info.texts.end() ? "" : layout->second.c_str());
  }
  return {};
}

Result<void> inspect(const std::string& folder) {
  const auto manifest = read_manifest(folder);
  if (!manifest) return manifest.error();
  std::printf("step %lld, attempt %s\n", static_cast<long long>(manifest.value().step),
              manifest.value().attempt.c_str());
  for (const auto& [name, value] : manifest.value().info.numbers)
    std::printf("%s: %lld\n", name.c_str(), static_cast<long long>(value));
  for (const TensorRecord& tensor : manifest.value().tensors)
    std::printf("%-64s %-4s %-20s %10s in %zu\n", tensor.name.c_str(), std::string(enum_name(tensor.type)).c_str(),
                to_string(tensor.shape).c_str(),
                format_bytes(num_elements(tensor.shape) * element_bytes(tensor.type)).c_str(), tensor.pieces.size());
  std::printf("%zu tensors, %s\n", manifest.value().tensors.size(),
              format_bytes(total_bytes(manifest.value())).c_str());
  return {};
}

Result<void> verify_folder(const std::string& folder, int threads) {
  const auto manifest = read_manifest(folder);
  if (!manifest) return manifest.error();
  Result<VerifyReport> report = VerifyReport{};
  {
    Progress progress("verify", "B", total_bytes(manifest.value()));
    report = verify(folder, threads, [&](int64_t bytes) { progress.add(bytes); });
  }
  if (!report) return report.error();
  for (const std::string& problem : report.value().problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (!report.value().problems.empty()) return file_error("{}: {} problems", folder, report.value().problems.size());
  std::printf("%s: %lld pieces in %lld files, %s: all checksums are right\n", folder.c_str(),
              static_cast<long long>(report.value().pieces), static_cast<long long>(report.value().files),
              format_bytes(report.value().bytes).c_str());
  return {};
}

Result<void> prune_folder(const std::string& dir, int keep_last, int64_t keep_every) {
  const auto removed = prune(dir, keep_last, keep_every, new_attempt());
  if (!removed) return removed.error();
  for (const std::string& name : removed.value()) std::printf("removed %s\n", name.c_str());
  return {};
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& status) {
  auto* command = app.add_subcommand("checkpoint", "Look into, check and remove checkpoints")->require_subcommand(1);
  auto path = std::make_shared<std::string>();

  auto* list_command = command->add_subcommand("list", "The checkpoints of a folder, newest first");
  list_command->add_option("dir", *path, "checkpoint.dir of a run")->required();
  on_run(list_command, status, [path] { return list(*path); });

  auto* inspect_command =
      command->add_subcommand("inspect", "The tensors of a checkpoint: types, shapes, sizes, pieces");
  inspect_command->add_option("checkpoint", *path, "A step_... folder")->required();
  on_run(inspect_command, status, [path] { return inspect(*path); });

  auto* verify_command = command->add_subcommand("verify", "Read a checkpoint and compare all checksums");
  auto threads = std::make_shared<int>(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  verify_command->add_option("checkpoint", *path, "A step_... folder")->required();
  verify_command->add_option("--threads", *threads, "Reading threads")->check(CLI::Range(1, 1024));
  on_run(verify_command, status, [path, threads] { return verify_folder(*path, *threads); });

  auto* prune_command = command->add_subcommand("prune", "Remove old checkpoints");
  auto keep_last = std::make_shared<int>(3);
  auto keep_every = std::make_shared<int64_t>(0);
  prune_command->add_option("dir", *path, "checkpoint.dir of a run that is not running")->required();
  prune_command->add_option("--keep-last", *keep_last, "Newest ones that stay")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  prune_command->add_option("--keep-every", *keep_every, "Multiples of this step stay")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  on_run(prune_command, status, [=] { return prune_folder(*path, *keep_last, *keep_every); });
}

}  // namespace tri
