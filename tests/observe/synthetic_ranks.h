// Times of ranks like those that a cluster would measure, generated from a seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include "io/ranks/rank_times.h"

namespace tri {

// Uniform and normal numbers from a seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  double uniform() {  // (0, 1)
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

 private:
  uint64_t state_;
};

inline RankMesh synthetic_mesh(int pp, int dp, int tp) {
  RankMesh mesh{.attempt = "synthetic",
                .grid = unnamed_grid(pp, dp, tp),
                .schedule = "1f1b",
                .num_microbatches = 8,
                .chunks = 1,
                .stage_flops = {},
                .places = {}};
  for (int stage = 0; stage < pp; ++stage) mesh.stage_flops.push_back(stage + 1 == pp ? 1.3e12 : 1e12);
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    mesh.places.push_back({"node" + std::to_string(rank / 8), "0000:0" + std::to_string(rank % 8) + ":00.0"});
  return mesh;
}

// The fault of the cluster: the factor of a rank's compute in a window.
using Disturbance = std::function<double(int world_rank, int64_t window)>;

// Returns the next window: the head's stage takes 1.3 times as long; every step of every rank has `noise` (a standard
// deviation, 0.03: 3 %), and one in a hundred takes three times as long. Everything else waits for the slowest.
inline RankWindow synthetic_window(const RankMesh& mesh, int64_t number, double noise, Draws& draws,
                                   const Disturbance& disturbance = nullptr, int steps = 50) {
  RankWindow window{.first_step = number * steps + 1,
                    .last_step = (number + 1) * steps,
                    .time = 1.7e9 + static_cast<double>(number),
                    .ranks = std::vector<RankTimes>(static_cast<size_t>(mesh.world_size()))};
  double slowest = 0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const double factor = disturbance ? disturbance(rank, number) : 1;
    const double own = (mesh.stage_of(rank) + 1 == mesh.stages() && mesh.stages() > 1 ? 1.3 : 1.0) * factor * 0.3;
    std::vector<double> computed;
    double sum = 0;
    for (int step = 0; step < steps; ++step) {
      const double hiccup = draws.uniform() < 0.01 ? 3 : 1;
      computed.push_back(own * hiccup * std::exp(noise * draws.normal()));
      sum += computed.back() / steps;
    }
    std::nth_element(computed.begin(), computed.begin() + steps / 2, computed.end());
    RankTimes& times = window.ranks[static_cast<size_t>(rank)];
    times[RankQuantity::kCompute] = static_cast<float>(computed[static_cast<size_t>(steps / 2)]);
    times[RankQuantity::kForward] = static_cast<float>(sum / 3);
    times[RankQuantity::kBackward] = static_cast<float>(2 * sum / 3);
    times[RankQuantity::kOptimizer] = 0.01f;
    times[RankQuantity::kSend] = static_cast<float>(0.0005 * std::exp(noise * draws.normal()));
    times[RankQuantity::kLaunch] = static_cast<float>(0.8 * sum);
    slowest = std::max(slowest, sum);
  }
  for (RankTimes& times : window.ranks) {
    times[RankQuantity::kStep] = static_cast<float>(1.1 * slowest + 0.01);
    times[RankQuantity::kBubble] = times[RankQuantity::kStep] - times[RankQuantity::kForward] -
                                   times[RankQuantity::kBackward] - times[RankQuantity::kOptimizer];
  }
  return window;
}

}  // namespace tri
