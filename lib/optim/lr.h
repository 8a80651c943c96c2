// Learning-rate rules: a pure function of the position of a step in its run. Every rule starts with a linear warm-up
// from 0. A new rule is one function and one row in lr.cpp, and a name in lib/config/kinds.h.
#pragma once

#include <cstdint>

#include "lib/config/config.h"

namespace tri {

// The position of a step in its run.
struct StepPosition {
  int64_t step = 0;         // completed steps before it
  int64_t tokens = 0;       // trained before it
  int64_t step_tokens = 0;  // trained by it; > 0 if lr.by is tokens
};

// Returns the position of the step that follows `steps` completed steps and `samples` consumed samples of a run with a
// resolved config.
StepPosition step_position(const Config& config, int64_t steps, int64_t samples);

// Returns the rate of a step; `lr` must be resolved. With lr.by steps, t = step, n = 1, w = warmup_steps and
// e = decay_steps; with lr.by tokens, t = tokens, n = step_tokens, w = warmup_tokens and e = decay_tokens. Steps count
// from 0 here, but from 1 in metrics, logs and the config's descriptions: the first step at min is e here, and e + 1
// there.
//   warm-up   peak · (t + n) / (w + n)                             t < w
//   constant  peak
//   linear    peak -> min over [w, e]
//   cosine    min + (peak - min) · (1 + cos(pi · (t - w) / (e - w))) / 2        (Loshchilov & Hutter 2017)
//   wsd       peak, then linear to min over the last wsd_decay_fraction of e    (Hu et al. 2024, warmup-stable-decay)
// Beyond e the decaying rules stay at min. With a constant batch and lengths of whole steps, both units give the same
// rates up to rounding.
double learning_rate(const LrConfig& lr, const StepPosition& at);
// The same for lr.by steps.
double learning_rate(const LrConfig& lr, int64_t step);

}  // namespace tri
