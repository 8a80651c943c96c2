#include "lib/observe/ranks/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lib/observe/ranks/stragglers.h"
#include "lib/schedule/pipeline.h"

namespace tri {
namespace {

constexpr size_t kReplicas = 3;  // simulate only the pipelines that may be the longest

// Returns the window with the rank's compute and sends set to those of its role.
RankWindow without_delay(const RankMesh& mesh, RankWindow window, int world_rank) {
  for (const std::vector<int>& role : roles_of(mesh)) {
    if (std::find(role.begin(), role.end(), world_rank) == role.end()) continue;
    for (const RankQuantity quantity : {RankQuantity::kForward, RankQuantity::kBackward, RankQuantity::kSend}) {
      std::vector<double> values;
      for (const int rank : role) values.push_back(window.ranks[static_cast<size_t>(rank)][quantity]);
      float& mine = window.ranks[static_cast<size_t>(world_rank)][quantity];
      mine = std::min(mine, static_cast<float>(lower_median(values)));
    }
  }
  return window;
}

// Returns the costs of the stages of one pipeline, by virtual stage; `member` is its first rank. A tp group is as fast
// as its slowest member. That member waits for the others the least, so its waits are the transfers themselves.
std::vector<StageCost> costs_of(const RankMesh& mesh, const RankWindow& window, int member) {
  const auto schedule = enum_from_name<Schedule>(mesh.schedule);
  const double weight_share = schedule && splits_backward(*schedule) ? 0.5 : 0;
  std::vector<StageCost> costs(static_cast<size_t>(mesh.stages() * mesh.chunks));
  const double passes = mesh.num_microbatches * mesh.chunks;
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    double forward = 0, backward = 0, waits = 0, send = 0;
    bool first = true;
    for (const int world_rank : mesh.grid.group(mesh.grid.moved(member, "pp", stage), {"tp"})) {
      const RankTimes& rank = window.ranks[static_cast<size_t>(world_rank)];
      const double compute = rank[RankQuantity::kForward] + rank[RankQuantity::kBackward];
      if (first || compute > forward + backward) {
        forward = rank[RankQuantity::kForward];
        backward = rank[RankQuantity::kBackward];
      }
      const double transfers = rank[RankQuantity::kTp] + rank[RankQuantity::kCp] + rank[RankQuantity::kEp];
      waits = first ? transfers : std::min(waits, transfers);
      send = std::max<double>(send, rank[RankQuantity::kSend]);
      first = false;
    }
    const double with_waits = forward + backward > 0 ? 1 + waits / (forward + backward) : 0;
    for (int chunk = 0; chunk < mesh.chunks; ++chunk)
      costs[static_cast<size_t>(virtual_stage(schedule.value_or(Schedule::k1F1B), {stage, mesh.stages()}, chunk))] = {
          .forward = forward * with_waits / passes,
          .backward = backward * with_waits / passes * (1 - weight_share),
          .transfer = send,
          .weight = backward * with_waits / passes * weight_share};
  }
  return costs;
}

// A lower bound by which pipelines are ordered: the slowest stage's work, and one microbatch through all stages.
double estimate(const std::vector<StageCost>& costs, const RankMesh& mesh) {
  const Schedule schedule = enum_from_name<Schedule>(mesh.schedule).value_or(Schedule::k1F1B);
  std::vector<double> stages(static_cast<size_t>(mesh.stages()));
  double through = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    stages[static_cast<size_t>(rank_of_stage(schedule, mesh.stages(), static_cast<int>(i)))] +=
        costs[i].forward + costs[i].backward + costs[i].weight;
    through += costs[i].forward + costs[i].backward + 2 * costs[i].transfer;
  }
  return through + (mesh.num_microbatches - 1) * *std::max_element(stages.begin(), stages.end());
}

// Returns the time of the longest of the replicas' pipelines, for which the step waits.
double longest_pipeline(const RankMesh& mesh, const RankWindow& window, const std::vector<Plan>& plans,
                        StagePlacement placement) {
  std::vector<std::pair<double, std::vector<StageCost>>> pipelines;
  for (const int member : mesh.grid.group_without(0, {"pp", "tp"})) {
    std::vector<StageCost> costs = costs_of(mesh, window, member);
    pipelines.emplace_back(estimate(costs, mesh), std::move(costs));
  }
  const size_t count = std::min(kReplicas, pipelines.size());
  std::partial_sort(pipelines.begin(), pipelines.begin() + static_cast<std::ptrdiff_t>(count), pipelines.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  double longest = 0;
  for (size_t i = 0; i < count; ++i)
    longest =
        std::max(longest, simulate_pipeline(plans, mesh.chunks, pipelines[i].second, Overlap::kOn, placement).makespan);
  return longest;
}

}  // namespace

std::optional<double> step_without(const RankMesh& mesh, const RankWindow& window, int world_rank) {
  const auto schedule = enum_from_name<Schedule>(mesh.schedule);
  if (!schedule) return std::nullopt;
  const std::vector<Plan> plans =
      plans_of_all_stages(*schedule, mesh.stages(), mesh.num_microbatches, mesh.chunks, costs_of(mesh, window, 0));
  const StagePlacement placement = placement_of(*schedule);
  const double step = window.ranks[static_cast<size_t>(world_rank)][RankQuantity::kStep];
  const double saved = longest_pipeline(mesh, window, plans, placement) -
                       longest_pipeline(mesh, without_delay(mesh, window, world_rank), plans, placement);
  return step - std::max(0.0, saved);
}

std::string what_if_text(double step, double without) {
  if (step - without < 1e-3 * step) return "a step would not be shorter without it";
  return fmt::format("without it a step would take {:.4g} ms instead of {:.4g} ms", 1e3 * without, 1e3 * step);
}

}  // namespace tri
