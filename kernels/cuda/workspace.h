// Scratch memory of kernels and libraries: grow-only, one piece a stream and use, so that work on one stream
// (which runs in order) can share it. It grows in the first step and never after.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tri::cuda {

enum class Scratch { kGemm, kBiasGradient, kAttention, kColumnSums, kSort, kRowLosses, kSumsq };

void* workspace(cudaStream_t stream, Scratch use, size_t bytes);

}  // namespace tri::cuda
