// What the benches share: random operands and medians on a stream's own clock.
#pragma once

#include <functional>
#include <vector>

#include "io/base/median.h"
#include "kernels/core/device.h"

namespace tri {

// Of `rounds` runs, after two that do not count.
double median_seconds(const std::function<void()>& run, int rounds, Device& device, Stream& stream);

// Random numbers in (-scale, scale): zeros would spare a GPU power, and lend it speed. Waits until they are there.
void fill_random(Tensor tensor, Stream& stream, double scale = 1.0);

}  // namespace tri
