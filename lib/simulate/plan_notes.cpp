// Says what other numbers of ranks and layers would give.
#include <algorithm>
#include <cmath>
#include <set>

#include "io/base/format.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/layouts.h"
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

// Says what the config's own buckets would cost; "" if the best layout keeps them.
std::string bucket_note(const Config& config, const Cluster& cluster, const PlanSearch& search) {
  const PlannedLayout& best = search.best.front();
  const int64_t own = config.parallel.bucket_elements;
  if (best.workload.bucket_elements == own) return "";
  Workload w = best.workload;
  w.bucket_elements = own;
  return fmt::format("parallel.bucket_elements is {} in the first layout; with {} its step would take {:.3f} s",
                     best.workload.bucket_elements, own, predict_step(w, cluster).seconds);
}

// A nearby number of layers or ranks, and its best layout.
struct Alternative {
  int number = 0;
  PlannedLayout layout;
};

// Returns the alternative with the highest MFU above `mfu`; its number is 0 if there is none.
template <class Search>
Alternative best_of(const std::vector<int>& numbers, double mfu, Search search) {
  Alternative best;
  for (const int number : numbers) {
    const Result<PlanSearch> found = search(number);
    if (!found || found.value().best.front().step.mfu <= mfu) continue;
    best = {number, found.value().best.front()};
    mfu = best.layout.step.mfu;
  }
  return best;
}

// Multiples of powers of two, which stages divide evenly, up to a twentieth above `layers`.
std::vector<int> nearby_layers(int layers) {
  std::set<int> numbers;
  for (const int factor : {4, 8, 16, 32}) {
    const int number = (layers + factor - 1) / factor * factor;
    if (number > layers && 20 * number <= 21 * layers) numbers.insert(number);
  }
  return {numbers.begin(), numbers.end()};
}

// The numbers of ranks, up to a tenth away, that divide the layers, the batch and the heads; the nearest ones.
std::vector<int> nearby_ranks(const Config& config, const Cluster& cluster, int ranks) {
  constexpr size_t kMost = 8;
  const auto kept = ranks_along(kOtherAxes, config.parallel);
  std::set<int64_t> numbers;
  for (const int tp : LayoutSpace(config, cluster.node.ranks).tensor_degrees())
    for (const int pp : divisors_up_to(kMostRanks, config.model.layers))
      for (const int dp : divisors_up_to(kMostRanks, batch_sizes(config).divisor())) {
        const int64_t number = int64_t{tp} * pp * dp * kept;
        if (number != ranks && number <= kMostRanks && std::abs(number - ranks) * 10 <= ranks) numbers.insert(number);
      }
  std::vector<int> nearest(numbers.begin(), numbers.end());
  std::ranges::sort(nearest, {}, [&](int number) { return std::abs(number - ranks); });
  if (nearest.size() > kMost) nearest.resize(kMost);
  return nearest;
}

std::string layout_text(const Workload& w) {
  return fmt::format("tp {}{}, pp {}, dp {}", w.tp, w.cp > 1 ? fmt::format(", cp {}", w.cp) : "", w.pp, w.dp);
}

// Says what nearby numbers of layers and ranks would give, if their MFU is above `mfu`.
std::string alternatives_note(const Config& config, const Cluster& cluster, PlanOptions options, double mfu) {
  options.keep = 1;
  std::string text;
  const auto with_layers = [&](int layers) -> Result<PlanSearch> {
    Config changed = config;
    changed.model.layers = layers;
    return search_layouts(changed, cluster, options);
  };
  const Alternative layers = best_of(nearby_layers(config.model.layers), mfu, with_layers);
  if (layers.number > 0)
    text += fmt::format("model.layers {} instead of {} would reach an MFU of {:.1f} %, {:.3f} s per step, with {}",
                        layers.number, config.model.layers, 100 * layers.layout.step.mfu, layers.layout.step.seconds,
                        layout_text(layers.layout.workload));
  if (!options.pinned.tp && !options.pinned.pp && !options.pinned.dp) {
    const int requested = options.ranks;
    const auto with_ranks = [&](int ranks) {
      options.ranks = ranks;
      return search_layouts(config, cluster, options);
    };
    const Alternative ranks = best_of(nearby_ranks(config, cluster, requested), mfu, with_ranks);
    if (ranks.number > 0)
      text += fmt::format("{}{} ranks instead of {} would reach an MFU of {:.1f} %, {:.3f} s per step, with {}",
                          text.empty() ? "" : "\n", ranks.number, requested, 100 * ranks.layout.step.mfu,
                          ranks.layout.step.seconds, layout_text(ranks.layout.workload));
  }
  return text;
}

}  // namespace

std::string without_layout_note(const Config& config, const Cluster& cluster, const PlanOptions& options) {
  const std::string note = alternatives_note(config, cluster, options, 0);
  return note.empty() ? "" : "\n" + note;
}

std::vector<std::string> plan_notes(const Config& config, const Cluster& cluster, const PlanOptions& options,
                                    const PlanSearch& search) {
  std::vector<std::string> notes;
  if (std::string note = attention_note(search.best.front().workload, cluster); !note.empty())
    notes.push_back(std::move(note));
  if (std::string note = experts_note(search.best.front().workload); !note.empty()) notes.push_back(std::move(note));
  if (std::string note = documents_note(search.best.front().workload, cluster); !note.empty())
    notes.push_back(std::move(note));
  if (std::string note = bucket_note(config, cluster, search); !note.empty()) notes.push_back(std::move(note));
  if (std::string note = scale_note(config, cluster, options, search); !note.empty()) notes.push_back(std::move(note));
  // An alternative must be better by more than the uncertainty, or at least by 2 %.
  const double better = 1 + std::max(0.02, cluster.uncertainty);
  if (std::string note = alternatives_note(config, cluster, options, better * search.best.front().step.mfu);
      !note.empty())
    notes.push_back(std::move(note));
  return notes;
}

}  // namespace tri
