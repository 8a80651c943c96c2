// The state before the first step.
#pragma once

#include "lib/optim/parameter_memory.h"

namespace tri {

// Writes the parameters and this rank's slices of the master weights, if there are any; the parameters are then their
// rounded values. A value is a pure function of (seed, name, global element). The average of the weights becomes their
// copy. Moments keep their values; FP8 weights become zero. Runs on the device of `compute` and waits for it.
void write_start_values(const ParameterMemory& memory, const Mesh& mesh, uint64_t seed, Stream& compute);

}  // namespace tri
