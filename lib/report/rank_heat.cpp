#include "lib/report/rank_heat.h"

#include <algorithm>
#include <cmath>

#include "io/ranks/ranks_file.h"
#include "lib/observe/ranks/heat_map.h"
#include "lib/observe/ranks/stragglers.h"

namespace tri {
namespace {

struct Shown {
  const char* name;
  HeatScale scale;
};
constexpr Shown kShown[] = {
    {"compute", HeatScale::kRatio}, {"forward", HeatScale::kRatio},      {"backward", HeatScale::kRatio},
    {"rate", HeatScale::kRatio},    {"launch_skew", HeatScale::kAmount}, {"tp", HeatScale::kAmount},
    {"cp", HeatScale::kAmount},     {"ep", HeatScale::kAmount},          {"dp", HeatScale::kAmount},
    {"bubble", HeatScale::kAmount}, {"data", HeatScale::kAmount},
};
constexpr int64_t kMostSlices = 200;

struct Place {
  int attempt;
  int64_t window;
};

// Adjacent windows merged into one: the means over their steps.
struct Joined {
  RankWindow all;
  double steps = 0;

  void add(const RankWindow& window) {
    const auto weight = static_cast<double>(window.steps());
    std::vector<RankTimes>& ranks = all.ranks;
    if (steps == 0) {
      all.first_step = window.first_step;
      ranks.resize(window.ranks.size());
    }
    const double before = steps / (steps + weight), more = weight / (steps + weight);
    for (size_t r = 0; r < ranks.size(); ++r)
      for (size_t q = 0; q < ranks[r].seconds.size(); ++q)
        ranks[r].seconds[q] = static_cast<float>(before * ranks[r].seconds[q] + more * window.ranks[r].seconds[q]);
    steps += weight;
    all.last_step = window.last_step;
    all.time = window.time;
  }
};

size_t role_index(const RankMesh& mesh, int world_rank) {
  return static_cast<size_t>(mesh.stage_of(world_rank) * mesh.tp() + mesh.grid.rank_on("tp", world_rank));
}

// For an even count takes the better of the two middle values, as the comparison of ranks does.
std::vector<float> role_medians(const RankMesh& mesh, const Heat& heat) {
  std::vector<float> medians(static_cast<size_t>(mesh.stages()) * static_cast<size_t>(mesh.tp()));
  const double sign = heat.is_rate ? -1 : 1;
  for (const std::vector<int>& role : roles_of(mesh)) {
    std::vector<double> values;
    for (const int rank : role) values.push_back(sign * heat.values[static_cast<size_t>(rank)]);
    const double middle = sign * lower_median(std::move(values));
    for (const int rank : role) medians[role_index(mesh, rank)] = static_cast<float>(middle);
  }
  return medians;
}

uint8_t byte_of(double value) {
  return std::isfinite(value) ? static_cast<uint8_t>(std::lround(std::clamp(value, 0.0, 255.0))) : 128;
}

HeatQuantity quantity_of(const Shown& shown, const RankMesh& mesh, const std::vector<Joined>& slices) {
  HeatQuantity made{.name = shown.name, .scale = shown.scale};
  std::vector<Heat> heats;
  for (const Joined& slice : slices) {
    heats.push_back(value_or_throw(heat_of(mesh, slice.all, shown.name)));
    for (const double value : heats.back().values) made.most = std::max(made.most, value);
  }
  if (!(made.most > 0)) return made;
  made.is_rate = heats.front().is_rate;
  for (const Heat& heat : heats) {
    const std::vector<float> medians = role_medians(mesh, heat);
    std::vector<uint8_t>& bytes = made.bytes.emplace_back();
    for (size_t r = 0; r < heat.values.size(); ++r) {
      const double value = heat.values[r], middle = medians[role_index(mesh, static_cast<int>(r))];
      const double ratio = value > 0 && middle > 0 ? (heat.is_rate ? middle / value : value / middle) : 1;
      bytes.push_back(
          byte_of(shown.scale == HeatScale::kRatio ? 128 + 127 * std::log2(ratio) : 255 * value / made.most));
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
    if (mesh.grid != heat.mesh.grid) continue;
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
  for (const Joined& slice : joined) heat.slices.push_back({slice.all.first_step, slice.all.last_step, slice.all.time});
  for (const Shown& shown : kShown)
    if (HeatQuantity quantity = quantity_of(shown, heat.mesh, joined); !quantity.bytes.empty())
      heat.quantities.push_back(std::move(quantity));
  return std::optional(std::move(heat));
}

}  // namespace tri
