#include "lib/train/run_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lib/observe/metrics.h"

namespace tri {
namespace {

// The batch job of this process, where Slurm started it.
BatchStart batch_start() {
  const char *job = std::getenv("SLURM_JOB_ID"), *restart = std::getenv("SLURM_RESTART_COUNT");
  return {job == nullptr ? "" : job, restart == nullptr ? 0 : std::atoi(restart)};
}

}  // namespace

Result<RunLock> open_run_folder(const Config& config, const std::string& attempt) {
  std::error_code problem;
  std::filesystem::create_directories(config.run.dir, problem);
  if (problem) return file_error("run.dir {}: {}", config.run.dir, problem.message());
  auto lock = RunLock::take({.run = config.run.dir, .checkpoints = config.checkpoint.dir}, attempt, batch_start());
  if (!lock) return lock;
  std::ofstream out(config.run.dir + "/config.yaml");
  out << to_yaml(config);
  if (!out.flush()) return file_error("{}/config.yaml can't be written", config.run.dir);
  return lock;
}

Result<void> begin_metrics(const std::string& path, int64_t completed) {
  if (!std::filesystem::exists(path)) return {};
  std::error_code problem;
  int number = 1;
  const auto aside = [&] { return fmt::format("{}.{}.jsonl", path.substr(0, path.rfind(".jsonl")), number); };
  while (std::filesystem::exists(aside())) ++number;
  std::filesystem::rename(path, aside(), problem);
  if (problem) return file_error("{}: {}", aside(), problem.message());
  if (completed == 0) return {};
  std::ifstream earlier(aside());
  std::ofstream kept(path);
  for (std::string line; std::getline(earlier, line);)
    if (step_of_line(line) <= completed) kept << line << '\n';
  if (!kept.flush()) return file_error("{} can't be written", path);
  return {};
}

}  // namespace tri
