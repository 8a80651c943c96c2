// Scratch memory of kernels and libraries: grow-only, one buffer a stream and use, so that work on one stream
// (which runs in order) can share it. It grows in the first step and never after: out of the memory that was lent for
// it (the arena's "kernel workspace"), and by allocations when that is not enough, which is logged.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

enum class Scratch { kGemm, kBiasGradient, kAttention, kColumnSums, kSort, kRowLosses, kSumsq };

// One GPU's. Thread-safe.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* buffer(cudaStream_t stream, Scratch use, size_t bytes);

  // The memory that buffers are taken from henceforth. Those of the memory lent before are forgotten; an empty
  // tensor, with the device idle, also frees what was allocated beyond.
  void lend(const Tensor& memory);

  size_t bytes_beyond() const;  // allocated because what was lent did not suffice

 private:
  void free_allocated();

  mutable std::mutex mutex_;
  std::map<std::pair<cudaStream_t, Scratch>, std::pair<void*, size_t>> buffers_;
  char* lent_ = nullptr;
  size_t lent_bytes_ = 0, used_ = 0;
  std::vector<void*> allocated_;  // allocated here
  size_t beyond_ = 0;             // their bytes
};

// The stream's buffer for `use`, 256-byte aligned, of at least `bytes`.
void* workspace(CudaStream& stream, Scratch use, size_t bytes);

// Multiprocessors of the stream's GPU.
int num_multiprocessors(CudaStream& stream);

}  // namespace tri::cuda
