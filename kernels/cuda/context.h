// Shared by the streams of one GPU: its properties, the scratch memory of kernels, plans and choices of GEMMs, cuDNN's
// attention graphs. The device object owns it; two devices of a process share nothing.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "io/base/mutex.h"
#include "kernels/core/gpu.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {

GpuProperties gpu_properties(int ordinal);

// The flags of cuStreamWaitValue32 for Stream::wait_flag(): wait until the flag has reached the value and, if the GPU
// can, flush what a peer wrote before it set the flag, so that the work behind the wait sees it. A GPU that cannot
// flush refuses the second.
unsigned wait_value_flags(const GpuProperties& gpu);

class Context {
 public:
  explicit Context(const GpuProperties& properties) : properties_(properties) {}

  const GpuProperties& properties() const { return properties_; }
  Workspace& workspace() { return workspace_; }
  // Each is created at the first use, since that loads the library's code.
  GemmEngine& gemms() {
    const MutexLock lock(mutex_);
    return made(gemms_);
  }
  CudnnAttention& cudnn() {
    const MutexLock lock(mutex_);
    return made(cudnn_);
  }

  // Returns whether this is the first call with this text, for messages that are logged once per device.
  bool first_time(const std::string& text) {
    const MutexLock lock(mutex_);
    return said_.insert(text).second;
  }

 private:
  template <class T>
  static T& made(std::unique_ptr<T>& object) {
    if (!object) object = std::make_unique<T>();
    return *object;
  }

  const GpuProperties properties_;
  Mutex mutex_;
  Workspace workspace_;
  std::unique_ptr<GemmEngine> gemms_ TRI_GUARDED_BY(mutex_);
  std::unique_ptr<CudnnAttention> cudnn_ TRI_GUARDED_BY(mutex_);
  std::set<std::string> said_ TRI_GUARDED_BY(mutex_);
};

}  // namespace tri::cuda
