// The context that the parts of one rank share. TrainingLoop, Trainer, Engine and Runtime pass it by const reference.
#pragma once

#include "kernels/core/arena.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

class Job;

// Owns its mesh and refers to everything else, which outlives all parts made with it. The context itself need not
// outlive them, since the engine keeps a copy. Config and mesh never change, so any thread may read them. Job, device
// and arena are used only by the training thread, except where their own headers allow more.
struct RankContext {
  const Config& config;  // planned (job_plan.h)
  Mesh mesh;
  Job* job = nullptr;  // may be null on a mesh of one rank
  Device& device;
  Arena& arena;  // owns the rank's device memory, large enough for allocate_rank
};

}  // namespace tri
