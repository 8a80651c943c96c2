// Shared by the benches: random operands, and medians on a stream's own clock.
#pragma once

#include <functional>
#include <vector>

#include "io/base/median.h"
#include "kernels/core/device.h"

namespace tri {

// Returns the median of `rounds` runs, after two uncounted ones. `before` runs untimed ahead of each: while the stream
// executes it, the host enqueues `run`, so that enqueueing is not measured.
double median_seconds(const std::function<void()>& run, int rounds, Device& device, Stream& stream,
                      const std::function<void()>& before = {});

// Returns the bytes per second of copies of `bytes` inside the device's memory, read plus written. Allocates both
// buffers.
double device_copy_rate(Device& device, int64_t bytes, int rounds);

// Fills with random numbers in (-scale, scale): zeros would reduce a GPU's power and increase its speed. Waits for the
// result.
void fill_random(Tensor tensor, Stream& stream, double scale = 1.0);

}  // namespace tri
