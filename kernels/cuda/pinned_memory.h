// Host memory that the GPU's copy engines read and write directly.
#pragma once

#include <cstddef>
#include <map>

#include "io/base/mutex.h"

namespace tri::cuda {

// Any thread may call it. cudaMallocHost clears and pins pages of 4 KiB one after another. Large blocks are instead
// made of huge pages, which several threads clear and which are pinned afterwards.
class PinnedMemory {
 public:
  // Throws Fatal (kDevice) if the host has too little memory.
  void* allocate(size_t bytes);
  void release(void* memory) noexcept;

 private:
  Mutex mutex_;
  // Blocks that cudaMallocHost did not allocate, with their bytes.
  std::map<void*, size_t> mapped_ TRI_GUARDED_BY(mutex_);
};

}  // namespace tri::cuda
