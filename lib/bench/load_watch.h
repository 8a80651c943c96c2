// Measures how hard a GPU works during a measurement, by polling it from a separate thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/core/gpu.h"

namespace tri {

class LoadWatch {
 public:
  using Read = std::function<std::optional<GpuLoad>()>;
  // Calls `read` from a separate thread, first immediately, until it returns nothing or finish() is called.
  explicit LoadWatch(Read read, std::chrono::milliseconds between = std::chrono::milliseconds(50));
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;
  // Returns the median of each number; none if nothing was read. Call once.
  std::optional<GpuLoad> finish();

 private:
  std::vector<GpuLoad> seen_;  // used by the thread until it has ended
  std::jthread thread_;        // ends with the object at the latest
};

}  // namespace tri
