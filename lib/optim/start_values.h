// The state before the first step.
#pragma once

#include "lib/optim/parameter_memory.h"

namespace tri {

// Writes the parameters and, where there are master weights, which the parameters round, this rank's slices of them.
// A value is a pure function of (seed, name, global element). Moments stay as they are, FP8 weights become zero. Made
// on the device of `compute`; waits until they are there.
void write_start_values(const ParameterMemory& memory, const Mesh& mesh, uint64_t seed, Stream& compute);

}  // namespace tri
