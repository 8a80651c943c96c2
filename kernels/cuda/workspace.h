// Scratch memory of kernels and libraries: grow-only, one piece a stream and use, so that work on one stream
// (which runs in order) can share it. It grows in the first step and never after: out of the memory that was lent for
// it (the arena's "kernel workspace"), and by allocations of its own when that is not enough, which is logged.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/core/tensor.h"

namespace tri::cuda {

enum class Scratch { kGemm, kBiasGradient, kAttention, kColumnSums, kSort, kRowLosses, kSumsq };

void* workspace(cudaStream_t stream, Scratch use, size_t bytes);

// The memory that pieces are cut from henceforth. The pieces of the memory lent before are forgotten; an empty tensor,
// with the device idle, also frees what was allocated beyond.
void lend_workspace(const Tensor& memory);

}  // namespace tri::cuda
