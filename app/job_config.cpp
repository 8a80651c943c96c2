#include "app/job_config.h"

#include "io/base/log.h"
#include "lib/config/axis_fields.h"
#include "lib/infer/loaded_model.h"

namespace tri {
namespace {

// Sends the config that world rank 0 parsed to all ranks: variables in paths may differ between their environments.
Result<Config> share_config(const Result<Config>& parsed, Job& job) {
  Result<std::string> yaml = std::string();
  if (job.world_rank() == 0) yaml = parsed ? Result<std::string>(to_yaml(parsed.value())) : parsed.error();
  const auto text = job.broadcast(yaml);
  if (!text) return text.error();
  return parse_config(text.value(), "the config of rank 0", {});
}

Result<Config> parse_for_job(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  log_identify(job.world_rank(), "");
  Result<Config> parsed = Config{};
  if (job.world_rank() == 0) {
    const auto text = read_config_text(path);
    parsed = text ? parse_config(text.value(), path, overrides) : text.error();
  }
  return share_config(parsed, job);
}

Result<PlannedJob> plan_resolved(Config parsed, Job& job, EngineKind kind) {
  const auto resolved = resolve_config(std::move(parsed), job.world_size());
  if (!resolved) return resolved.error();
  log_set_level(resolved.value().metrics.log);
  log_identify(job.world_rank(), mesh_of(resolved.value(), job.world_rank()).place());
  return plan_for_job(resolved.value(), job, kind);
}

void log_warnings(const PlannedJob& planned) {
  if (planned.mesh.world_rank != 0) return;
  for (const std::string& warning : planned.plan.warnings) log_warn("{}", warning);
}

struct CheckpointText {
  std::string folder;
  int64_t step = 0;
  std::string yaml;  // the checkpoint's config
};
template <class Archive>
void fields(Archive& archive, CheckpointText& text) {
  archive(text.folder, text.step, text.yaml);
}

// Runs on world rank 0; stores the manifest in `manifest`. Axes that a layout in the overrides omits are 1.
Result<CheckpointText> open_checkpoint(const std::string& path, const std::vector<std::string>& overrides, int ranks,
                                       WeightSet weights, std::optional<Manifest>& manifest) {
  const auto folder = find_checkpoint(path);
  if (!folder) return folder.error();
  auto read = read_manifest(folder.value());
  if (!read) return read.error();
  if (auto there = check_files(folder.value(), read.value()); !there) return there.error();
  if (auto held = check_weight_set(folder.value(), read.value(), weights); !held) return held.error();
  const auto config = checkpoint_config(folder.value(), read.value());
  if (!config) return config.error();
  manifest = std::move(read).value();
  bool names_layout = false;
  for (const AxisField& field : kAxisFields)
    names_layout |=
        field.axis != AxisName("dp") && names_field(overrides, fmt::format("parallel.{}", field.axis.text()));
  return CheckpointText{folder.value(), manifest->step,
                        to_yaml(forward_config(config.value(), names_layout ? 1 : ranks))};
}

// Returns the config of `checkpoint` with the overrides, which must not change its trained model.
Result<Config> override_model(const OpenedCheckpoint& checkpoint, const std::string& yaml,
                              const std::vector<std::string>& overrides) {
  const std::string source = checkpoint.folder + "'s config";
  auto config = parse_config(yaml, source, overrides);
  if (!config) return config;
  const auto trained = parse_config(yaml, source, {});
  if (!trained) return trained;
  if (auto same = check_model(checkpoint, trained.value(), config.value()); !same) return same.error();
  return config;
}

}  // namespace

Result<PlannedJob> load_job_config(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  const auto parsed = parse_for_job(path, overrides, job);
  if (!parsed) return parsed.error();
  auto planned = plan_resolved(parsed.value(), job, EngineKind::kTraining);
  if (planned) planned.value().written = parsed.value();
  return planned;
}

Result<BenchJob> open_bench_job(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  auto planned = load_job_config(path, overrides, job);
  if (!planned) return planned.error();
  log_info("{}", to_string(planned.value().plan));
  log_warnings(planned.value());
  auto device = open_planned_device(planned.value().plan.device, job);
  if (!device) return device.error();
  return BenchJob{std::move(planned).value(), std::move(device).value()};
}

Result<OpenConfig> load_open_config(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  auto parsed = parse_for_job(path, overrides, job);
  if (!parsed) return parsed.error();
  Config& config = parsed.value();
  auto device = plan_device(config.run.device, gather_host_facts(config.run.device, job));
  if (!device) return device.error();
  config.run.device = device_choice(device.value().kind);
  return OpenConfig{std::move(config), std::move(device).value()};
}

Result<CheckpointJob> load_checkpoint_config(const std::string& path, const std::vector<std::string>& overrides,
                                             WeightSet weights, Job& job, const std::function<void(Config&)>& adjust) {
  log_identify(job.world_rank(), "");
  std::optional<Manifest> manifest;
  const auto text = job.broadcast(
      job.world_rank() == 0 ? open_checkpoint(path, overrides, job.world_size(), weights, manifest) : CheckpointText{});
  if (!text) return text.error();
  const auto& [folder, step, yaml] = text.value();
  OpenedCheckpoint checkpoint{folder, std::move(manifest), weights};
  auto parsed =
      share_config(job.world_rank() == 0 ? override_model(checkpoint, yaml, overrides) : Result<Config>(Config{}), job);
  if (!parsed) return parsed.error();
  adjust(parsed.value());
  auto planned = plan_resolved(std::move(parsed).value(), job, EngineKind::kInference);
  if (!planned) return planned.error();
  if (planned.value().requested.run.device == DeviceChoice::kAuto)
    log_info("run.device: auto: {}", enum_name(planned.value().plan.device.kind));
  log_warnings(planned.value());
  const Result<void> holds = checkpoint.manifest ? check_weights(checkpoint, planned.value().config) : Result<void>{};
  if (auto agreed = agree(job, holds); !agreed) return agreed.error();
  return CheckpointJob{std::move(checkpoint), step, std::move(planned).value()};
}

}  // namespace tri
