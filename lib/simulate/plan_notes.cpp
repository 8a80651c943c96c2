// Says what other numbers of ranks would give.
#include "io/base/format.h"
#include "lib/simulate/planner.h"

namespace tri {
namespace {

// More ranks than this share of time saved are worth: doubling them must save a fifth of the step.
constexpr double kHardlySlower = 1.25;

// Warns if far fewer ranks take hardly longer; "" otherwise.
std::string scale_note(const Config& config, const Cluster& cluster, PlanOptions options, const PlanSearch& search) {
  const double seconds = search.best.front().step.seconds;
  const int requested = options.ranks;
  int fewest = requested;
  double slower = seconds;
  options.keep = 1;
  while (options.ranks % 2 == 0) {
    options.ranks /= 2;
    const auto fewer = search_layouts(config, cluster, options);
    if (!fewer || fewer.value().best.front().step.seconds > kHardlySlower * seconds) break;
    fewest = options.ranks;
    slower = fewer.value().best.front().step.seconds;
  }
  if (fewest == requested) return "";
  const double share = slower / seconds - 1;
  return fmt::format(
      "{} ranks are too many for this batch and model: {} {}; raise data.global_batch {}, or use fewer", requested,
      counted(fewest, "rank"),
      share > 0.001 ? fmt::format("take{} only {:.0f} % longer", fewest == 1 ? "s" : "", 100 * share) : "are as fast",
      config.data.global_batch);
}

}  // namespace

std::vector<std::string> plan_notes(const Config& config, const Cluster& cluster, const PlanOptions& options,
                                    const PlanSearch& search) {
  std::vector<std::string> notes;
  if (std::string note = scale_note(config, cluster, options, search); !note.empty()) notes.push_back(std::move(note));
  return notes;
}

}  // namespace tri
