// The layouts that a sweep tries: which exist, which are worth trying, and in what order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/config/layouts.h"

namespace tri {

// Returns an estimate of a step's time relative to one without idle stages, recomputation and small GEMMs, from the
// pipeline's bubble, the repeated work, and the rows of a GEMM. It only decides the order of trials.
double guessed_slowness(const Config& resolved);

// Returns the bytes of the fullest rank's arena, by running the set-up on a measuring arena.
int64_t predicted_bytes(const Config& resolved);

struct LayoutChoice {
  std::vector<ParallelLayout> layouts;  // in trial order
  bool own_first = false;               // the first one is the config's own
  std::string own_problem;              // why its own is not included; "" if it is
  int refused = 0;                      // violate a rule of the config
  int too_large = 0;                    // do not fit with any recompute and sharding
  int beyond_limit = 0;                 // fit, but exceed `limit`
};

// Returns at most `limit` layouts for `world` ranks whose `bytes` (predicted_bytes, except in tests) are at most
// `most_bytes`.
//   meshes       all of LayoutSpace (lib/config/layouts.h)
//   schedules    1f1b; with pp > 1 interleaved too, with up to 4 chunks
//   micro-batch  for each mesh and schedule, the three that fit and are estimated to be fastest
//   zero 1 or 2, recompute none, norms, selective or full: only as much of both as it takes to fit. zero 0 is zero 1
//                with more memory
// Order: the config's own layout, then the best estimate of each mesh, then the second of each, and so on. `config`
// need not be resolved or suit `world`. Fails if no layout obeys the config's rules.
Result<LayoutChoice> choose_layouts(const Config& config, int world, int64_t most_bytes, int limit,
                                    const std::function<int64_t(const Config&)>& bytes = predicted_bytes);

}  // namespace tri
