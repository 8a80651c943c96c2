#include "kernels/cuda/workspace.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "io/base/log.h"
#include "kernels/cuda/check.h"

namespace tri::cuda {
namespace {

struct Pieces {
  std::mutex mutex;
  std::map<std::pair<cudaStream_t, Scratch>, std::pair<void*, size_t>> pieces;
  char* lent = nullptr;
  size_t lent_bytes = 0, used = 0;
  std::vector<void*> own;  // allocated here
  size_t beyond = 0;       // their bytes

  static Pieces& instance() {
    static Pieces pieces;
    return pieces;
  }
};

}  // namespace

void* workspace(cudaStream_t stream, Scratch use, size_t bytes) {
  constexpr size_t kAlignment = 256;
  Pieces& p = Pieces::instance();
  std::lock_guard lock(p.mutex);
  auto& [memory, size] = p.pieces[{stream, use}];
  if (size >= bytes) return memory;
  size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // The smaller piece is left to the work that still uses it: freeing would make the host wait for the device, and
  // the device may be waiting for a peer whose host waits for this one.
  if (p.lent_bytes - p.used >= size) {
    memory = p.lent + p.used;
    p.used += size;
    return memory;
  }
  TRI_CUDA(cudaMalloc(&memory, size));
  p.own.push_back(memory);
  p.beyond += size;
  if (p.lent != nullptr)
    log_info("workspace of kernels: {} MiB more than the arena's {} MiB", (p.beyond + (1 << 20) - 1) >> 20,
             p.lent_bytes >> 20);
  return memory;
}

void lend_workspace(const Tensor& memory) {
  Pieces& p = Pieces::instance();
  std::lock_guard lock(p.mutex);
  if (memory.empty()) {  // the device is idle, and the streams that the pieces are of may end
    for (void* piece : p.own) cudaFree(piece);
    p.own.clear();
    p.pieces.clear();
    p.beyond = 0;
  }
  std::erase_if(p.pieces, [&](const auto& entry) {
    const char* at = static_cast<const char*>(entry.second.first);
    return at >= p.lent && at < p.lent + p.lent_bytes;
  });
  p.lent = static_cast<char*>(memory.data);
  p.lent_bytes = memory.empty() ? 0 : static_cast<size_t>(memory.bytes());
  p.used = 0;
}

}  // namespace tri::cuda
