// Host memory that the GPU's copy engines read and write directly.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace tri::cuda {

// Any thread may call it. cudaMallocHost clears and pins pages of 4 KiB one after another; large blocks are made here
// of huge pages, which several threads clear, and are pinned afterwards.
class PinnedMemory {
 public:
  // Fatal(kDevice): the host has no memory for it.
  void* allocate(size_t bytes);
  void release(void* memory) noexcept;

 private:
  std::mutex mutex_;
  std::map<void*, size_t> mapped_;  // blocks that are not cudaMallocHost's, with their bytes
};

}  // namespace tri::cuda
