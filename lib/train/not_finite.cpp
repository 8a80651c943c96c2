#include "lib/train/not_finite.h"

#include <optional>

namespace tri {
namespace {

constexpr size_t kShown = 8;  // ranks: a NaN of one spreads to thousands

}  // namespace

std::vector<std::string> not_finite_places(Trainer& trainer, Job& job) {
  const std::vector<std::string> names = trainer.not_finite_names();
  const Mesh& mesh = trainer.engine().mesh();
  std::optional<std::string> mine;
  if (!names.empty()) {
    mine = fmt::format("rank {} [{}]: {}", mesh.world_rank, mesh.place(), names.front());
    if (names.size() > 1) *mine += fmt::format(" and {} more", names.size() - 1);
  }
  std::vector<std::string> places;
  size_t others = 0;
  for (const auto& of_rank : job.gather(mine)) {
    if (!of_rank) continue;
    if (places.size() < kShown)
      places.push_back(*of_rank);
    else
      ++others;
  }
  if (others > 0) places.push_back(fmt::format("and {} more ranks", others));
  return job.broadcast(places);
}

std::string to_text(const std::vector<std::string>& places) {
  if (places.empty())
    return "\n  when the step was repeated, every rank's numbers were finite: a device or its memory may fail";
  std::string text;
  for (const std::string& place : places) text += "\n  " + place;
  return text;
}

Error not_finite_error(const StepMetrics& metrics, const std::vector<std::string>& places, int64_t skipped) {
  return Error{
      fmt::format(
          "step {}: loss {} and gradient norm {} are not finite{}; stopped before the next step{}\nLower lr.peak, "
          "raise lr.warmup_steps, or look at the data of this step.",
          metrics.step, metrics.loss, metrics.grad_norm,
          skipped > 0 ? fmt::format(", nor were those of the {} steps before it (fault.max_skips)", skipped) : "",
          to_text(places)),
      ExitCode::kNotFinite};
}

}  // namespace tri
