#include "lib/train/run_folder.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "io/base/file.h"
#include "io/base/log.h"
#include "io/checkpoint/folder.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/changes.h"
#include "lib/optim/lr.h"
#include "lib/optim/optimizers.h"

namespace tri {

BatchStart batch_start() {
  // A supervisor's values take precedence: it starts the ranks many times within one start of the job.
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
  if (problem) return system_error(problem.value(), "run.dir {}: creating the folder", config.run.dir);
  auto lock = RunLock::take({.run = config.run.dir, .checkpoints = config.checkpoint.dir}, attempt, batch_start());
  // Ranks that a driver starts have TRIREME_SUPERVISED in their environment. A driver looks for other ranks after it
  // has taken its own lock, so at least one of the two sees the other.
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

namespace {

constexpr double kJump = 1.5;  // a change of the learning rate by more than this factor causes a warning

bool differs_much(double a, double b) { return std::max(a, b) > kJump * std::min(a, b); }

// Whether the checkpoint's weights have the shapes of the config's model; accepting a change cannot alter shapes.
Result<void> check_shapes(const Manifest& manifest, const Config& config) {
  for (const ParamSpec& spec : model_parameters(config))
    if (const auto found = manifest.find(weight_name(spec.name), StoredType::kF32, spec.shape); !found)
      return found.error();
  return {};
}

// Whether the checkpoint has the state of the config's optimizer.
Result<void> check_optimizer(const std::string& folder, const Config& saved, const Config& config) {
  const OptimizerKind before = saved.optimizer.name, now = config.optimizer.name;
  const OptimizerRow &had = optimizer_row(before), &needs = optimizer_row(now);
  if (had.state == needs.state && had.matrix_state == needs.matrix_state) return {};
  return usage_error(
      "{} has the optimizer state of optimizer.name {}, but {} needs another one; restore the field, or start a new "
      "run from the weights: trireme checkpoint export, then import",
      folder, enum_name(before), enum_name(now));
}

// Describes what switching optimizer.ema on or off at a resume does; "" for other changes.
std::string_view consequence_of(const FieldChange& change, const Config& before, const Config& now) {
  if (change.name != "optimizer.ema") return "";
  if (before.optimizer.ema == 0) return ": the EMA starts from the weights";
  return now.optimizer.ema == 0 ? ": the checkpoint's EMA is dropped" : "";
}

}  // namespace

std::string rate_warning(const Config& before, const Config& now, int64_t steps, std::optional<int64_t> consumed) {
  const int64_t samples = consumed.value_or(batch_sizes(before).after(0, steps));
  if (steps < 1 || steps >= last_step(now, steps, samples)) return "";
  const auto rate = [](const Config& config, int64_t step, int64_t sample) {
    return learning_rate(config.lr, step_position(config, step, sample));
  };
  const double last = rate(before, steps - 1, batch_sizes(before).after(0, steps - 1)),
               next = rate(now, steps, samples);
  if (!differs_much(last, next) || !differs_much(rate(before, steps, samples), next)) return "";
  std::string back;
  for (const FieldChange& change : changed_fields(before, now))
    if (change.name.starts_with("lr."))
      back += fmt::format("{}{}={}", back.empty() ? "" : ", ", change.name, change.before);
  // With Muon, AdamW's rate is a share of Muon's, which a changed lr.peak changes.
  const std::string adamw =
      before.optimizer.adamw_lr > 0
          ? fmt::format(", optimizer.adamw_lr={:g}", last * before.optimizer.adamw_lr / before.lr.peak)
          : "";
  // A rate of 0 cannot be held, but no step needs it.
  const std::string hold = last > 0
                               ? fmt::format("; to hold the rate, set lr.rule=constant, lr.peak={:g}, lr.warmup_{}=0{}",
                                             last, enum_name(now.lr.by), adamw)
                               : "";
  return fmt::format(
      "the learning rate jumps: {:.3g} in step {}, {:.3g} in step {}; to continue the previous schedule, set {}{}",
      last, steps, next, steps + 1, back, hold);
}

Result<void> accept_checkpoint(const Config& config, const std::string& folder, const Manifest& manifest) {
  const auto saved = checkpoint_config(folder, manifest);
  if (!saved && config.checkpoint.accept_changes == "true") {
    log_warn("{}; it is unknown what has changed since, but checkpoint.accept_changes is true: the run continues",
             saved.error().message);
    return {};
  }
  if (!saved)
    return usage_error("{}\nso it is unknown what has changed since; set checkpoint.accept_changes to true to continue",
                       saved.error().message);

  std::string changes, refused, names;
  for (const FieldChange& change : changed_fields(saved.value(), config)) {
    const bool fixed = change.on_resume == OnResume::kFixed, accepted = fixed && accepts_change(config, change.name);
    const std::string line = fmt::format("\n  {}: {}, now {}{}", change.name, change.before, change.after,
                                         consequence_of(change, saved.value(), config));
    if (fixed && !accepted) {
      refused += line;
      names += (names.empty() ? "" : ",") + change.name;
    } else if (fixed || !holds_weights_alone(manifest)) {  // weights without optimizer state do not belong to a run
                                                           // with its own config
      changes += line + (accepted ? " (accepted by checkpoint.accept_changes)" : "");
    }
  }
  if (!refused.empty() && !manifest.tensors.empty())
    if (const auto fits = check_shapes(manifest, config); !fits)
      return usage_error(
          "{} was saved with a different model:{}\n{}; restore the fields, or start a new run with another run.name",
          folder, refused, fits.error().message);
  if (!refused.empty())
    return usage_error(
        "{} was saved with a different model:{}\nrestore these fields or, if the change is intended, set "
        "checkpoint.accept_changes to {}",
        folder, refused, names);
  if (!holds_weights_alone(manifest))
    if (auto fits = check_optimizer(folder, saved.value(), config); !fits) return fits;
  if (!changes.empty()) log_info("the config has changed since {} was saved:{}", folder, changes);
  const auto samples = manifest.info.numbers.find("samples");
  const auto consumed = samples == manifest.info.numbers.end() ? std::nullopt : std::optional(samples->second);
  if (const std::string warning = rate_warning(saved.value(), config, manifest.step, consumed);
      !warning.empty() && !holds_weights_alone(manifest))
    log_warn_alike("{}", warning);
  return {};
}

}  // namespace tri
