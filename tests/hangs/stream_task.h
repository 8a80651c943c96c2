// Work that a test runs on a stream of either backend.
#pragma once

#include <chrono>
#include <functional>

#include "kernels/core/device.h"

namespace tri {

// Runs `task` after the stream's earlier work. For a GPU a driver thread runs it, so it must not call CUDA.
void run_on_stream(Stream& stream, std::function<void()> task);
// Keeps the stream idle for `duration` after its earlier work.
void idle(Stream& stream, std::chrono::microseconds duration);
// Enqueues work that never ends: a spinning kernel on a GPU, a sleeping task on the CPU.
void hang_stream(Stream& stream);

}  // namespace tri
