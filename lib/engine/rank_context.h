// What the parts of one rank have in common. Each part passes it on to the one that it owns or works with, by const
// reference: TrainingLoop, Trainer, Engine, Runtime.
#pragma once

#include "kernels/core/arena.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

class Job;
class TransferObserver;

// Owns its mesh, and refers to everything else, which outlives all parts that were made with it; the context itself
// need not, since the engine keeps a copy. Config and mesh never change: any thread may read them. The thread that
// trains is the only one that uses the job, the device and the arena, except where their own headers allow more.
struct RankContext {
  const Config& config;  // planned (job_plan.h)
  Mesh mesh;
  Job* job = nullptr;  // may be null on a mesh of one rank
  Device& device;
  Arena& arena;                          // owns the rank's device memory, with room for allocate_rank
  TransferObserver* observer = nullptr;  // called at each transfer of this rank; may be null
};

}  // namespace tri
