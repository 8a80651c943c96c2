// What FP8 gains on this GPU: decides precision.gemm: auto (job_plan.h).
#pragma once

#include "kernels/core/device.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

// Time of the GEMMs of one layer of this rank in precision.compute over that in FP8, with what FP8 adds: casts of rows
// and of gradients, transposes, and the share of a microbatch in the transposes of weights, or their casts
// (precision.fp8_guard). Each with the algorithms that the device's search finds, which keeps them, or without it
// (run.gemm_search) with the library's first. The device is hot, as in a step. Takes memory of its own for about a
// second. `config` resolved and one that FP8 takes on GPUs.
double fp8_speedup(const Config& config, const Mesh& mesh, Device& device);

}  // namespace tri
