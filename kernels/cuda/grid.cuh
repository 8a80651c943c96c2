// The plain mapping: a thread per item, in blocks of kThreads.
#pragma once

#include <cstdint>

namespace tri::cuda {

constexpr int kThreads = 256;

inline unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }
__device__ __forceinline__ int64_t thread_index() { return blockIdx.x * int64_t{kThreads} + threadIdx.x; }

}  // namespace tri::cuda
