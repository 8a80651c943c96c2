// The part of stream_task.h for a GPU's streams; returns false if `stream` is not one. CMake selects the file that
// defines it: cuda_stream_task.cu, or no_cuda_stream_task.cpp.
#pragma once

#include <functional>

#include "kernels/core/device.h"

namespace tri {

bool cuda_run_on_stream(Stream& stream, const std::function<void()>& task);
bool cuda_hang_stream(Stream& stream);

}  // namespace tri
