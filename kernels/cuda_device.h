// The only entry to the CUDA backend. CMake selects the file that defines it: cuda/device.cpp, or no_cuda.cpp.
#pragma once

#include "kernels/core/device.h"

namespace tri {

Result<std::vector<std::string>> cuda_devices();  // see visible_gpus()

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);  // see open_device(); fails with kDevice

}  // namespace tri
