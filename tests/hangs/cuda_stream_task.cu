#include "tests/hangs/cuda_stream_task.h"

#include <memory>

#include "kernels/cuda/check.h"
#include "kernels/cuda/stream.h"

namespace tri {
namespace {

// One thread spins until a clock stops, which never happens.
__global__ void spin() {
  for (long long last = clock64() - 1; last != clock64();) last = clock64();
}

}  // namespace

bool cuda_run_on_stream(Stream& stream, const std::function<void()>& task) {
  auto* const cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) return false;
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(argument));
    (*own)();
  };
  TRI_CUDA(cudaLaunchHostFunc(cuda->get(), run, new std::function<void()>(task)));
  return true;
}

bool cuda_hang_stream(Stream& stream) {
  auto* const cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) return false;
  spin<<<1, 1, 0, cuda->get()>>>();
  TRI_CUDA(cudaGetLastError());
  return true;
}

}  // namespace tri
