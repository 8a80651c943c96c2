#include "app/job_config.h"

#include "io/base/log.h"

namespace tri {

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
  const auto& parallel = resolved.value().parallel;
  const Mesh mesh = make_mesh(job.world_rank(), parallel.tp, parallel.dp, parallel.pp);
  log_identify(job.world_rank() == 0, mesh.place());
  return JobConfig{std::move(resolved).value(), mesh};
}

}  // namespace tri
