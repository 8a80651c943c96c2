// The CPU backend's streams: worker threads with queues.
#pragma once

#include <functional>

#include "kernels/core/device.h"

namespace tri {

class CpuStream : public Stream {
 public:
  using Stream::Stream;
  // Enqueues `task`. An exception that it throws becomes the device's fault.
  virtual void submit(std::function<void()> task) = 0;
};

// Returns `stream` as a CPU stream. CPU kernels and MPI groups never get any other kind.
inline CpuStream& cpu_stream(Stream& stream) { return static_cast<CpuStream&>(stream); }

std::unique_ptr<Device> make_cpu_device();

}  // namespace tri
