#include "kernels/cuda/workspace.h"

#include <algorithm>

#include "io/base/log.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"

namespace tri::cuda {

Workspace::~Workspace() {
  const MutexLock lock(mutex_);
  free_allocated();
}

void Workspace::free_allocated() {
  for (void* buffer : allocated_) cudaFree(buffer);
  allocated_.clear();
  beyond_ = 0;
}

void* Workspace::buffer(cudaStream_t stream, Scratch use, size_t bytes) {
  constexpr size_t kAlignment = 256;
  const MutexLock lock(mutex_);
  auto& [memory, size] = buffers_[{stream, use}];
  if (size >= bytes) return memory;
  const size_t grown = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // Abandons the smaller buffer to the work that still uses it: freeing would make the host wait for the device, and
  // the device may be waiting for a peer whose host waits for this one.
  if (lent_bytes_ - used_ >= grown) {
    memory = lent_ + used_;
    used_ += grown;
    size = grown;
    return memory;
  }
  void* allocated = nullptr;
  TRI_CUDA(cudaMalloc(&allocated, grown));
  memory = allocated;
  size = grown;
  allocated_.push_back(memory);
  beyond_ += grown;
  if (lent_ != nullptr)
    log_info("kernel workspace: {} MiB were allocated beyond the {} MiB of the arena", (beyond_ + (1 << 20) - 1) >> 20,
             lent_bytes_ >> 20);
  return memory;
}

void Workspace::lend(const Tensor& memory) {
  const MutexLock lock(mutex_);
  if (memory.empty()) {  // the device is idle, and the streams that own the buffers may be destroyed
    free_allocated();
    buffers_.clear();
  }
  std::erase_if(buffers_, [begin = lent_, end = lent_ + lent_bytes_](const auto& entry) {
    const char* at = static_cast<const char*>(entry.second.first);
    return at >= begin && at < end;
  });
  lent_ = static_cast<char*>(memory.data);
  lent_bytes_ = memory.empty() ? 0 : static_cast<size_t>(memory.bytes());
  used_ = 0;
}

size_t Workspace::bytes_beyond() const {
  const MutexLock lock(mutex_);
  return beyond_;
}

void* workspace(CudaStream& stream, Scratch use, size_t bytes) {
  return stream.context().workspace().buffer(stream.get(), use, bytes);
}

int num_multiprocessors(CudaStream& stream) { return stream.context().properties().num_multiprocessors; }

int multiprocessors_alongside(CudaStream& stream) {
  constexpr int kClusters = 4;  // leaves whole clusters of blocks
  return std::max(num_multiprocessors(stream) / 6 / kClusters * kClusters, 1);
}

int own_multiprocessors(CudaStream& stream) {
  return num_multiprocessors(stream) - (stream.leaves_room() ? multiprocessors_alongside(stream) : 0);
}

}  // namespace tri::cuda
