// The CUDA backend's only entry. The file that defines it is picked by CMake: cuda/device.cu, or no_cuda.cpp.
#pragma once

#include "kernels/core/device.h"

namespace tri {

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

}  // namespace tri
