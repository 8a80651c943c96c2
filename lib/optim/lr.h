// Learning-rate rules: a pure function of the step. Every rule starts with a linear warm-up from 0.
// A new rule is one function and one row in lr.cpp, and a name in lib/config/kinds.h.
#pragma once

#include <cstdint>

#include "lib/config/config.h"

namespace tri {

// Returns the rate of step `step`; `lr` must be resolved. Steps count from 0 here, but from 1 in metrics, logs and the
// config's descriptions: the first step at min is e here, and e + 1 there. With w = warmup_steps, e = decay_steps:
//   warm-up   peak · (step + 1) / (w + 1)                          step < w
//   constant  peak
//   linear    peak -> min over [w, e]
//   cosine    min + (peak - min) · (1 + cos(pi · (step - w) / (e - w))) / 2     (Loshchilov & Hutter 2017)
//   wsd       peak, then linear to min over the last wsd_decay_fraction of e    (Hu et al. 2024, warmup-stable-decay)
// Beyond e the decaying rules stay at min.
double learning_rate(const LrConfig& lr, int64_t step);

}  // namespace tri
