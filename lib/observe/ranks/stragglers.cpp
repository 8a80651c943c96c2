#include "lib/observe/ranks/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "io/base/median.h"

namespace tri {
namespace {

constexpr double kSigmaOfMedian = 1.4826;  // standard deviation of a normal distribution over its median absolute value
constexpr double kNoise = 2;               // differences within this many sigmas of all ranks' differences are ignored
constexpr int kEnoughPeers = 4;
constexpr double kNothing = 1e-9;  // seconds

double of(const RankWindow& window, int rank, RankQuantity quantity) {
  return window.ranks[static_cast<size_t>(rank)][quantity];
}

std::vector<double> values(const RankWindow& window, const std::vector<int>& ranks, RankQuantity quantity) {
  std::vector<double> result;
  for (const int rank : ranks) result.push_back(of(window, rank, quantity));
  return result;
}

double stage_flops(const RankMesh& mesh, int stage) {
  const auto index = static_cast<size_t>(stage);
  return index < mesh.stage_flops.size() ? mesh.stage_flops[index] : 0;
}

}  // namespace

std::vector<std::vector<int>> roles_of(const RankMesh& mesh) {
  std::vector<std::vector<int>> roles;
  if (mesh.in_stage() / mesh.tp() >= kEnoughPeers) {
    for (int stage = 0; stage < mesh.stages(); ++stage)
      for (int tp = 0; tp < mesh.tp(); ++tp)
        roles.push_back(mesh.grid.group_without(mesh.grid.rank_at({{"pp", stage}, {"tp", tp}}), {"pp", "tp"}));
    return roles;
  }
  if (mesh.in_stage() > 1) {
    for (int stage = 0; stage < mesh.stages(); ++stage) roles.push_back(mesh.ranks_of_stage(stage));
    return roles;
  }
  std::map<double, std::vector<int>> inner;  // by FLOPs
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    const bool is_inner = stage > 0 && stage + 1 < mesh.stages() && stage_flops(mesh, stage) > 0;
    if (is_inner)
      inner[stage_flops(mesh, stage)].push_back(stage);
    else
      roles.push_back({stage});
  }
  for (auto& [flops, ranks] : inner) roles.push_back(std::move(ranks));
  return roles;
}

double lower_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Slowness> slowness_of(const RankMesh& mesh, const RankWindow& window) {
  std::vector<Slowness> slowness(window.ranks.size());
  // Sends per step: each microbatch and chunk is sent once forward and once backward.
  const double sends = 2.0 * mesh.num_microbatches * mesh.chunks;
  for (const std::vector<int>& role : roles_of(mesh)) {
    const double compute = lower_median(values(window, role, RankQuantity::kCompute)),
                 send = lower_median(values(window, role, RankQuantity::kSend)),
                 step = lower_median(values(window, role, RankQuantity::kStep));
    for (const int rank : role) {
      Slowness& mine = slowness[static_cast<size_t>(rank)];
      if (compute > kNothing) mine.compute = of(window, rank, RankQuantity::kCompute) / compute - 1;
      if (send > kNothing && step > kNothing) mine.send = sends * (of(window, rank, RankQuantity::kSend) - send) / step;
    }
  }
  return slowness;
}

std::vector<double> stage_excess(const RankMesh& mesh, const RankWindow& window) {
  std::vector<double> seconds, excess;
  double all_seconds = 0, all_flops = 0;
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    seconds.push_back(lower_median(values(window, mesh.ranks_of_stage(stage), RankQuantity::kCompute)));
    all_seconds += seconds.back();
    all_flops += stage_flops(mesh, stage);
  }
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    const double expected = all_flops > 0 ? all_seconds * stage_flops(mesh, stage) / all_flops : 0;
    excess.push_back(expected > kNothing ? seconds[static_cast<size_t>(stage)] / expected - 1 : 0);
  }
  return excess;
}

StragglerWatch::StragglerWatch(RankMesh mesh)
    : mesh_(std::move(mesh)),
      cases_(static_cast<size_t>(mesh_.world_size())),
      stage_windows_(static_cast<size_t>(mesh_.stages())) {}

std::vector<StragglerNews> StragglerWatch::add(const RankWindow& window) {
  std::vector<StragglerNews> news;
  const std::vector<Slowness> slowness = slowness_of(mesh_, window);
  // Compute and sends have separate noise.
  std::vector<double> compute, send;
  for (const Slowness& rank : slowness) {
    compute.push_back(std::abs(rank.compute));
    send.push_back(std::abs(rank.send));
  }
  const double noise = kNoise * kSigmaOfMedian * median(compute), send_noise = kNoise * kSigmaOfMedian * median(send);
  for (size_t rank = 0; rank < slowness.size(); ++rank) {
    // Ignores what is within the noise.
    Slowness mine = slowness[rank];
    if (mine.send <= send_noise) mine.send = 0;
    judge(static_cast<int>(rank), mine, mine.send > mine.compute ? 0 : noise, window, news);
  }
  stragglers_.clear();
  for (size_t rank = 0; rank < cases_.size(); ++rank)
    if (cases_[rank].named) stragglers_.push_back(straggler_of(static_cast<int>(rank)));
  look_at_stages(window, news);
  look_at_data(window, news);
  return news;
}

void StragglerWatch::judge(int world_rank, const Slowness& slowness, double noise, const RankWindow& window,
                           std::vector<StragglerNews>& news) {
  Case& mine = cases_[static_cast<size_t>(world_rank)];
  const double over = slowness.worst() - std::max(kIgnored, noise);
  mine.evidence = std::clamp(mine.evidence + std::clamp(over, -kMostOfWindow, kMostOfWindow), 0.0, kMostEvidence);
  if (mine.evidence <= 0) {
    if (mine.named) news.push_back({.kind = StragglerNews::Kind::kOver, .straggler = straggler_of(world_rank)});
    mine = {};
    return;
  }
  if (mine.windows == 0) mine.first_step = window.first_step;
  ++mine.windows;
  mine.compute += slowness.compute;
  mine.send += slowness.send;
  const double mean = std::max(mine.compute, mine.send) / static_cast<double>(mine.windows);
  const bool slow = mine.named || (mine.evidence >= kEvidence && mean >= kSlow);
  const bool doctor = mine.doctor || (slow && mine.windows >= kDoctorWindows && mean >= kDoctor);
  const bool is_news = slow != mine.named || doctor != mine.doctor;
  mine.named = slow;
  mine.doctor = doctor;
  if (is_news) news.push_back({.kind = StragglerNews::Kind::kSlow, .straggler = straggler_of(world_rank)});
}

RankStraggler StragglerWatch::straggler_of(int world_rank) const {
  const Case& of = cases_[static_cast<size_t>(world_rank)];
  const auto windows = static_cast<double>(std::max<int64_t>(1, of.windows));
  return {.world_rank = world_rank,
          .what = of.compute >= of.send ? RankQuantity::kCompute : RankQuantity::kSend,
          .slowdown = std::max(of.compute, of.send) / windows,
          .windows = of.windows,
          .first_step = of.first_step,
          .doctor = of.doctor};
}

// Skips the first and the last stage: embedding and head take time that the FLOPs do not predict.
void StragglerWatch::look_at_stages(const RankWindow& window, std::vector<StragglerNews>& news) {
  const std::vector<double> excess = stage_excess(mesh_, window);
  for (int stage = 1; stage + 1 < mesh_.stages(); ++stage) {
    const auto index = static_cast<size_t>(stage);
    int& windows = stage_windows_[index];
    windows = excess[index] > kStageExcess ? windows + 1 : 0;
    if (windows == kWindows)
      news.push_back({.kind = StragglerNews::Kind::kStages, .stage = stage, .share = excess[index]});
  }
}

void StragglerWatch::look_at_data(const RankWindow& window, std::vector<StragglerNews>& news) {
  std::vector<double> data, step;
  for (const RankTimes& rank : window.ranks) {
    data.push_back(rank[RankQuantity::kData]);
    step.push_back(rank[RankQuantity::kStep]);
  }
  const double longest = median(step), share = longest > kNothing ? median(data) / longest : 0;
  data_windows_ = share > kDataShare ? data_windows_ + 1 : 0;
  if (data_windows_ == kWindows) news.push_back({.kind = StragglerNews::Kind::kData, .share = share});
}

std::string to_string(const RankMesh& mesh, const RankStraggler& straggler) {
  const std::string place = to_string_place(mesh, straggler.world_rank);
  const double percent = 100 * straggler.slowdown;
  const std::string role = mesh.in_stage() > 1
                               ? fmt::format("its peers of stage {}", mesh.stage_of(straggler.world_rank))
                               : "the stages with the same work";
  if (straggler.what == RankQuantity::kSend)
    return fmt::format(
        "{}: its sends to the neighbour stages take {:.0f} % of a step longer than those of {}, since step {}", place,
        percent, role, straggler.first_step);
  return fmt::format("{} computes {:.0f} % longer than {}, since step {}", place, percent, role, straggler.first_step);
}

}  // namespace tri
