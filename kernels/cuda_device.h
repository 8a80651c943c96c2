// The CUDA backend's only entry. The file that defines it is picked by CMake: cuda/device.cpp, or no_cuda.cpp.
#pragma once

#include "kernels/core/device.h"

namespace tri {

int cuda_device_count();  // GPUs that this process can use; 0 without CUDA, a driver or a GPU

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

}  // namespace tri
