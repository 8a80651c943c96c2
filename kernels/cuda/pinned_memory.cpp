#include "kernels/cuda/pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "io/base/parallel.h"
#include "kernels/cuda/check.h"

namespace tri::cuda {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kPage = 4096;
constexpr size_t kLeast = size_t{256} << 20;  // smallest block for which threads pay off
constexpr int64_t kMostThreads = 8;           // limited because several ranks of a node do so at the same time

// Writes to every page. The threads run on the caller's allowed cores, so the pages are on its NUMA node.
void touch_pages(char* memory, size_t bytes) {
  const auto pages = static_cast<int64_t>(bytes / kHugePage);
  parallel_ranges(pages, std::max<int64_t>(pages / kMostThreads, 1), [memory](int64_t begin, int64_t end) {
    const size_t last = static_cast<size_t>(end) * kHugePage;
    for (size_t at = static_cast<size_t>(begin) * kHugePage; at < last; at += kPage)
      static_cast<volatile char*>(memory)[at] = 0;
  });
}

}  // namespace

void* PinnedMemory::allocate(size_t bytes) {
  if (bytes >= kLeast) {
    const size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    // Maps one huge page more than needed, so that the block can begin at a huge page.
    void* const all = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all != MAP_FAILED) {
      char* const first = static_cast<char*>(all);
      char* const memory = first + (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
      if (memory > first) munmap(first, static_cast<size_t>(memory - first));
      munmap(memory + mapped, static_cast<size_t>(first + kHugePage - memory));
      madvise(memory, mapped, MADV_HUGEPAGE);  // if refused, pages have 4 KiB and are slower
      touch_pages(memory, mapped);
      if (cudaHostRegister(memory, mapped, cudaHostRegisterPortable) == cudaSuccess) {
        const MutexLock lock(mutex_);
        mapped_[memory] = mapped;
        return memory;
      }
      cudaGetLastError();  // clears the error; falls back to cudaMallocHost
      munmap(memory, mapped);
    }
  }
  void* memory = nullptr;
  TRI_CUDA(cudaMallocHost(&memory, std::max<size_t>(bytes, 1)));
  return memory;
}

void PinnedMemory::release(void* memory) noexcept {
  size_t mapped = 0;
  {
    const MutexLock lock(mutex_);
    if (const auto found = mapped_.find(memory); found != mapped_.end()) {
      mapped = found->second;
      mapped_.erase(found);
    }
  }
  if (mapped == 0) {
    cudaFreeHost(memory);
    return;
  }
  cudaHostUnregister(memory);
  munmap(memory, mapped);
}

}  // namespace tri::cuda
