#include "app/job_config.h"

#include "io/base/log.h"
#include "kernels/core/device.h"

namespace tri {
namespace {

// run.device: auto, decided for the whole job.
void choose_device(RunConfig& run, Job& job) {
  if (run.device != DeviceChoice::kAuto) return;
  const bool everywhere = job.all_of(num_gpus() > job.node_rank());
  run.device = everywhere ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  log_info("run.device: auto: {}",
           everywhere ? "a GPU a rank" : "not every rank has a GPU of its own, so the job runs on the CPU");
}

}  // namespace

Result<JobConfig> load_job_config(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  log_identify(job.world_rank() == 0, fmt::format("rank {}", job.world_rank()));
  std::string envelope;
  if (job.world_rank() == 0) {
    auto text = read_config_text(path);
    envelope = text ? "+" + text.value() : "-" + text.error().message;
  }
  envelope = job.broadcast(envelope);
  const std::string text = envelope.substr(1);
  if (envelope.front() == '-') return Error{text, ExitCode::kUsage};
  auto parsed = parse_config(text, path, overrides);
  if (!parsed) return parsed.error();
  auto resolved = resolve_config(std::move(parsed).value(), job.world_size());
  if (!resolved) return resolved.error();
  choose_device(resolved.value().run, job);
  const auto& parallel = resolved.value().parallel;
  const Mesh mesh = make_mesh(job.world_rank(), parallel.tp, parallel.dp, parallel.pp);
  log_identify(job.world_rank() == 0, mesh.place());
  return JobConfig{std::move(resolved).value(), mesh};
}

}  // namespace tri
