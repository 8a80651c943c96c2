#include "lib/train/run_folder.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "io/base/file.h"
#include "io/checkpoint/folder.h"

namespace tri {

BatchStart batch_start() {
  // What a supervisor says goes before: it starts the ranks many times within one start of the job.
  if (const char* supervised = std::getenv("TRIREME_RESTART")) {
    const char* name = std::getenv("TRIREME_JOB");
    return {name == nullptr ? "" : name, std::atoi(supervised)};
  }
  const char *job = std::getenv("SLURM_JOB_ID"), *restart = std::getenv("SLURM_RESTART_COUNT");
  return {job == nullptr ? "" : job, restart == nullptr ? 0 : std::atoi(restart)};
}

JobTimes job_times() {
  const auto time = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::max(0.0, std::strtod(text, nullptr));
  };
  const double allocated = time("TRIREME_ALLOCATED");
  return {time("TRIREME_SUBMITTED"), allocated > 0 ? allocated : time("SLURM_JOB_START_TIME")};
}

std::string own_attempt() {
  const char* given = std::getenv("TRIREME_ATTEMPT");
  return given != nullptr && valid_attempt(given) ? given : new_attempt();
}

Result<RunLock> open_run_folder(const Config& config, const std::string& attempt) {
  std::error_code problem;
  std::filesystem::create_directories(config.run.dir, problem);
  if (problem) return system_error(problem.value(), "run.dir {}: creating it", config.run.dir);
  auto lock = RunLock::take({.run = config.run.dir, .checkpoints = config.checkpoint.dir}, attempt, batch_start());
  // Ranks that a driver starts have TRIREME_SUPERVISED in their environment. A driver looks for other ranks after it
  // has taken its own lock: of the two at least one sees the other.
  if (!lock || std::getenv("TRIREME_SUPERVISED") != nullptr) return lock;
  const std::string path = config.run.dir + "/supervise.lock";
  const auto driver = holder_of_lock(path, batch_start());
  if (!driver) return driver.error();
  if (driver.value())
    return file_error(
        "{}: the run is supervised by {}, which starts its ranks itself; stop it, or choose another run.dir{}", path,
        driver.value()->text, stale_lock_remedy(*driver.value()));
  return lock;
}

Result<void> write_configs(const std::string& dir, const std::string& source, const Config& written,
                           const Config& decided) {
  const std::string path = dir + "/config.yaml";
  std::error_code absent;
  if (!std::filesystem::equivalent(source, path, absent))
    if (auto done = write_file(path, to_yaml(written)); !done) return done;
  return write_file(dir + "/resolved.yaml", to_yaml(decided));
}

}  // namespace tri
