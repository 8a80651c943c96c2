#include "lib/train/not_finite.h"

#include <optional>
#include <utility>

namespace tri {
namespace {

constexpr size_t kShown = 8;  // ranks to report: a NaN on one rank spreads to thousands

}  // namespace

NotFinitePlaces not_finite_places(Trainer& trainer, Job& job) {
  const std::vector<std::string> names = trainer.not_finite_names();
  const Mesh& mesh = trainer.engine().mesh();
  std::optional<std::pair<std::string, std::string>> mine;  // what, and on which machine
  if (!names.empty()) {
    mine = {fmt::format("rank {} [{}]: {}", mesh.world_rank, mesh.place(), names.front()), job.host()};
    if (names.size() > 1) mine->first += fmt::format(" and {} more", names.size() - 1);
  }
  NotFinitePlaces places;
  size_t others = 0;
  bool one_host = true;
  int rank = 0;
  for (const auto& of_rank : job.gather(mine)) {
    const int world_rank = rank++;
    if (!of_rank) continue;
    if (places.world_rank < 0) places.world_rank = world_rank, places.host = of_rank->second;
    one_host &= of_rank->second == places.host;
    if (places.texts.size() < kShown)
      places.texts.push_back(of_rank->first);
    else
      ++others;
  }
  if (others > 0) places.texts.push_back(fmt::format("and {} more ranks", others));
  if (!one_host) places.world_rank = -1, places.host.clear();
  return job.broadcast(places);
}

std::string to_text(const std::vector<std::string>& places) {
  if (places.empty())
    return "\n  when the step was repeated, the numbers of all ranks were finite: a device or its memory may be "
           "failing";
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
