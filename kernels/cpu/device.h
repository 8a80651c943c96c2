// The CPU backend's streams: worker threads with queues.
#pragma once

#include <functional>

#include "kernels/core/device.h"

namespace tri {

class CpuStream : public Stream {
 public:
  using Stream::Stream;
  // Enqueues `task`. What it throws becomes the device's fault.
  virtual void submit(std::function<void()> task) = 0;
};

// `stream` as a CPU stream: CPU kernels and MPI groups are only ever handed those.
inline CpuStream& cpu_stream(Stream& stream) { return static_cast<CpuStream&>(stream); }

std::unique_ptr<Device> make_cpu_device();
// Bytes of the largest block that such a device can share: this process's limit on a file's size (`ulimit -f`), which
// also holds for files in memory. None: it is not limited.
std::optional<int64_t> most_shared_cpu_bytes();

}  // namespace tri
