#include "kernels/cuda/workspace.h"

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/check.h"

namespace tri::cuda {

void* workspace(cudaStream_t stream, Scratch use, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<cudaStream_t, Scratch>, std::pair<void*, size_t>> pieces;
  std::lock_guard lock(mutex);
  auto& [memory, size] = pieces[{stream, use}];
  if (size < bytes) {
    // The smaller piece is left to the work that still uses it: freeing would make the host wait for the device, and
    // the device may be waiting for a peer whose host waits for this one.
    TRI_CUDA(cudaMalloc(&memory, bytes));
    size = bytes;
  }
  return memory;
}

}  // namespace tri::cuda
