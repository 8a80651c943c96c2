// Work of a test's own on a stream of either backend.
#pragma once

#include <chrono>
#include <functional>

#include "kernels/core/device.h"

namespace tri {

// `task` after earlier work of the stream. On a GPU's stream a thread of the driver runs it: it calls nothing of CUDA.
void run_on_stream(Stream& stream, std::function<void()> task);
// The stream does nothing for `duration` after its earlier work.
void idle(Stream& stream, std::chrono::microseconds duration);
// What the stream runs next does not end: on a GPU a kernel that spins, on the CPU a task that sleeps.
void hang_stream(Stream& stream);

}  // namespace tri
