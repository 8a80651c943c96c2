#include "lib/report/rank_heat.h"

#include <algorithm>
#include <cmath>

#include "io/ranks/ranks_file.h"
#include "lib/observe/stragglers.h"

namespace tri {
namespace {

struct Shown {
  RankQuantity quantity;
  HeatScale scale;
};
constexpr Shown kShown[] = {
    {RankQuantity::kCompute, HeatScale::kRatio},  {RankQuantity::kForward, HeatScale::kRatio},
    {RankQuantity::kBackward, HeatScale::kRatio}, {RankQuantity::kLaunch, HeatScale::kRatio},
    {RankQuantity::kTp, HeatScale::kSeconds},     {RankQuantity::kDp, HeatScale::kSeconds},
    {RankQuantity::kBubble, HeatScale::kSeconds}, {RankQuantity::kData, HeatScale::kSeconds},
};
constexpr int64_t kMostSlices = 200;

struct Place {
  int attempt;
  int64_t window;
};

// Neighbouring windows as one: the means over their steps.
struct Joined {
  HeatSlice slice;
  std::vector<RankTimes> ranks;
  double steps = 0;

  void add(const RankWindow& window) {
    const auto weight = static_cast<double>(window.steps());
    if (steps == 0) {
      slice.first_step = window.first_step;
      ranks.resize(window.ranks.size());
    }
    const double before = steps / (steps + weight), more = weight / (steps + weight);
    for (size_t r = 0; r < ranks.size(); ++r)
      for (size_t q = 0; q < ranks[r].seconds.size(); ++q)
        ranks[r].seconds[q] = static_cast<float>(before * ranks[r].seconds[q] + more * window.ranks[r].seconds[q]);
    steps += weight;
    slice.last_step = window.last_step;
    slice.time = window.time;
  }
};

std::vector<float> stage_medians(const RankMesh& mesh, const std::vector<RankTimes>& ranks, RankQuantity quantity) {
  const auto of_stage = static_cast<size_t>(mesh.dp) * static_cast<size_t>(mesh.tp);
  std::vector<float> medians;
  for (size_t first = 0; first < ranks.size(); first += of_stage) {
    std::vector<double> seconds;
    for (size_t r = first; r < first + of_stage; ++r) seconds.push_back(ranks[r][quantity]);
    medians.push_back(static_cast<float>(lower_median(seconds)));
  }
  return medians;
}

uint8_t byte_of(double value) {
  return std::isfinite(value) ? static_cast<uint8_t>(std::lround(std::clamp(value, 0.0, 255.0))) : 128;
}

HeatQuantity quantity_of(const Shown& shown, const RankMesh& mesh, const std::vector<Joined>& slices) {
  HeatQuantity made{.quantity = shown.quantity, .scale = shown.scale};
  for (const Joined& slice : slices)
    for (const RankTimes& rank : slice.ranks) made.most = std::max(made.most, double{rank[shown.quantity]});
  if (!(made.most > 0)) return made;
  for (const Joined& slice : slices) {
    const std::vector<float> medians = stage_medians(mesh, slice.ranks, shown.quantity);
    std::vector<uint8_t>& bytes = made.bytes.emplace_back();
    for (size_t r = 0; r < slice.ranks.size(); ++r) {
      const double seconds = slice.ranks[r][shown.quantity];
      const double middle = medians[static_cast<size_t>(mesh.stage_of(static_cast<int>(r)))];
      const double ratio = seconds > 0 && middle > 0 ? seconds / middle : 1;
      bytes.push_back(
          byte_of(shown.scale == HeatScale::kRatio ? 128 + 127 * std::log2(ratio) : 255 * seconds / made.most));
    }
    if (shown.scale == HeatScale::kRatio) made.medians.push_back(medians);
  }
  return made;
}

}  // namespace

Result<std::optional<RankHeat>> read_rank_heat(const std::string& run_dir, int64_t most_bytes) {
  const auto reader = RanksReader::open(run_dir + "/" + kRanksFile);
  if (!reader) return reader.error();
  const RanksReader& file = reader.value();
  if (file.num_attempts() == 0) return std::optional<RankHeat>();
  RankHeat heat{.mesh = file.mesh(file.num_attempts() - 1)};
  std::vector<Place> places;
  for (int a = 0; a < file.num_attempts(); ++a) {
    const RankMesh& mesh = file.mesh(a);
    if (mesh.pp != heat.mesh.pp || mesh.dp != heat.mesh.dp || mesh.tp != heat.mesh.tp) continue;
    const auto windows = file.num_windows(a);
    if (!windows) return windows.error();
    for (int64_t w = 0; w < windows.value(); ++w) places.push_back({a, w});
  }
  if (places.empty()) return std::optional<RankHeat>();

  const int64_t slice_bytes = heat.mesh.world_size() * static_cast<int64_t>(std::size(kShown));
  const auto windows = static_cast<int64_t>(places.size());
  const int64_t slices = std::clamp<int64_t>(most_bytes / slice_bytes, 1, std::min(kMostSlices, windows));
  std::vector<Joined> joined(static_cast<size_t>(slices));
  for (int64_t i = 0; i < windows; ++i) {
    const Place& place = places[static_cast<size_t>(i)];
    auto window = file.read(place.attempt, place.window);
    if (!window) return window.error();
    joined[static_cast<size_t>(i * slices / windows)].add(window.value());
  }
  for (const Joined& slice : joined) heat.slices.push_back(slice.slice);
  for (const Shown& shown : kShown)
    if (HeatQuantity quantity = quantity_of(shown, heat.mesh, joined); !quantity.bytes.empty())
      heat.quantities.push_back(std::move(quantity));
  return std::optional(std::move(heat));
}

double heat_seconds(const HeatQuantity& quantity, size_t slice, int world_rank, const RankMesh& mesh) {
  const double byte = quantity.bytes[slice][static_cast<size_t>(world_rank)];
  if (quantity.scale == HeatScale::kSeconds) return byte / 255 * quantity.most;
  const auto stage = static_cast<size_t>(mesh.stage_of(world_rank));
  return std::exp2((byte - 128) / 127) * quantity.medians[slice][stage];
}

}  // namespace tri
