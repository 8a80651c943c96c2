// For tests: something that happens on a stream before each of its transfers, such as a delay. Transfers that come late
// must change nothing but time.
#pragma once

#include <functional>

#include "kernels/core/device.h"

namespace tri {

// Of this process; set while nothing is enqueued. Empty: none.
void set_transfer_hook(std::function<void(Stream&)> hook);
void before_transfer(Stream& stream);

}  // namespace tri
