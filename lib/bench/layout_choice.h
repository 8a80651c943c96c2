// The layouts that a sweep tries: which there are, which of them are worth a try, and in what order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/config/layouts.h"

namespace tri {

// Time of a step against one without idle stages, recomputation and small GEMMs: a guess, from the pipeline's
// bubble, the work that is done twice, and the rows of a GEMM. It decides the order of trial, nothing else.
double guessed_slowness(const Config& resolved);

// Bytes of the fullest rank's arena, by the set-up on a measuring arena.
int64_t predicted_bytes(const Config& resolved);

struct LayoutChoice {
  std::vector<ParallelLayout> layouts;  // in the order of trial
  bool own_first = false;               // the first one is the config's own
  std::string own_problem;              // why its own is not among them; "" where it is
  int refused = 0;                      // break a rule of the config's
  int too_large = 0;                    // would not fit, whatever is recomputed and sharded
  int beyond_limit = 0;                 // would fit, but `limit` is reached
};

// At most `limit` layouts for `world` ranks whose `bytes` (predicted_bytes, except in tests) are at most `most_bytes`.
//   meshes       all of LayoutSpace (lib/config/layouts.h)
//   schedules    1f1b; with pp > 1 interleaved too, with up to 4 chunks
//   micro-batch  of each mesh and schedule the three that fit and are guessed the fastest
//   zero 1 or 2, recompute none, norms, selective or full: only as much of both as it takes to fit. zero 0 is zero 1
//                with more memory
// Order: the config's own layout, then the best guess of each mesh, then the second of each, and so on. `config` need
// not be resolved, nor be right for `world`. Error: no layout obeys the config's rules.
Result<LayoutChoice> choose_layouts(const Config& config, int world, int64_t most_bytes, int limit,
                                    const std::function<int64_t(const Config&)>& bytes = predicted_bytes);

}  // namespace tri
