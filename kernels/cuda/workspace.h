// Scratch memory of kernels and libraries: grow-only, one buffer per stream and use, so that the work of one stream,
// which runs in order, can share it. It grows in the first step and never after: from the memory lent for it (the
// arena's "kernel workspace"), or by allocations if that is not enough, which is logged.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "io/base/mutex.h"
#include "kernels/core/tensor.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

enum class Scratch { kGemm, kBiasGradient, kAttention, kColumnSums, kSort, kRowLosses, kSumsq, kTickets };

// The buffers of one GPU. Safe for concurrent use.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* buffer(cudaStream_t stream, Scratch use, size_t bytes);

  // Sets the memory from which buffers are taken. Forgets those in the memory lent before; an empty tensor, with the
  // device idle, also frees what was allocated in addition.
  void lend(const Tensor& memory);

  size_t bytes_beyond() const;  // allocated because the lent memory was too small

 private:
  void free_allocated() TRI_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::pair<cudaStream_t, Scratch>, std::pair<void*, size_t>> buffers_ TRI_GUARDED_BY(mutex_);
  char* lent_ TRI_GUARDED_BY(mutex_) = nullptr;
  size_t lent_bytes_ TRI_GUARDED_BY(mutex_) = 0, used_ TRI_GUARDED_BY(mutex_) = 0;
  std::vector<void*> allocated_ TRI_GUARDED_BY(mutex_);  // allocated by this class
  size_t beyond_ TRI_GUARDED_BY(mutex_) = 0;             // their bytes
};

// Returns the stream's buffer for `use`, 256-byte aligned, of at least `bytes`.
void* workspace(CudaStream& stream, Scratch use, size_t bytes);

// Returns the multiprocessors of the stream's GPU.
int num_multiprocessors(CudaStream& stream);
// Returns those that a stream leaves to others while it leaves room (Stream::leave_room): about a sixth, which updates
// weights at 60 % of the memory's bandwidth.
int multiprocessors_alongside(CudaStream& stream);
// Returns those that persistent kernels of the stream may fill.
int own_multiprocessors(CudaStream& stream);

}  // namespace tri::cuda
