#include "lib/train/not_finite.h"

#include <optional>

namespace tri {

Error not_finite_error(Trainer& trainer, Job& job, const StepMetrics& metrics) {
  const std::vector<std::string> names = trainer.not_finite_names();
  const Mesh& mesh = trainer.engine().mesh();
  std::optional<std::string> mine;
  if (!names.empty()) {
    mine = fmt::format("  rank {} [{}]: {}", mesh.world_rank, mesh.place(), names.front());
    if (names.size() > 1) *mine += fmt::format(" and {} more", names.size() - 1);
  }
  std::string report = fmt::format("step {}: loss {} and gradient norm {} are not finite; stopped before the next step",
                                   metrics.step, metrics.loss, metrics.grad_norm);
  bool anyone = false;
  for (const auto& of_rank : job.gather(mine)) {
    if (of_rank) report += "\n" + *of_rank;
    anyone |= of_rank.has_value();
  }
  if (!anyone)
    report += "\n  when the step was repeated, every rank's numbers were finite: a device or its memory may fail";
  return Error{job.broadcast(report) + "\nLower lr.peak, raise lr.warmup_steps, or look at the data of this step.",
               ExitCode::kNotFinite};
}

}  // namespace tri
