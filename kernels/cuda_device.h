// The CUDA backend's only entry. The file that defines it is picked by CMake: cuda/device.cpp, or no_cuda.cpp.
#pragma once

#include "kernels/core/device.h"

namespace tri {

Result<std::vector<std::string>> cuda_devices();  // see visible_gpus()

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

}  // namespace tri
