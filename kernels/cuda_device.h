// The CUDA backend's entries. The file that defines it is picked by CMake: cuda/device.cpp, or no_cuda.cpp.
#pragma once

#include "kernels/core/device.h"

namespace tri {

Result<std::vector<std::string>> cuda_devices();  // see visible_gpus()

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

// A CUDA device's streams leave their marks in the GPU's memory: this brings them into the words of map_host(), by copies
// on `stream`, which nobody else uses. From one thread at a time; waits a second at most.
void read_cuda_marks(Device& device, Stream& stream);

}  // namespace tri
