// What the benches share: random operands and medians on a stream's own clock.
#pragma once

#include <functional>
#include <vector>

#include "io/base/median.h"
#include "kernels/core/device.h"

namespace tri {

// Of `rounds` runs, after two that do not count. `before` runs ahead of each and is not timed: while the stream is busy
// with it the host enqueues `run`, whose own enqueuing then does not count.
double median_seconds(const std::function<void()>& run, int rounds, Device& device, Stream& stream,
                      const std::function<void()>& before = {});

// Bytes a second of copies of `bytes` inside the device's memory, read plus written. Allocates both ends.
double device_copy_rate(Device& device, int64_t bytes, int rounds);

// Random numbers in (-scale, scale): zeros would spare a GPU power, and lend it speed. Waits until they are there.
void fill_random(Tensor tensor, Stream& stream, double scale = 1.0);

}  // namespace tri
