// How hard a GPU works while something is measured: read again and again by a thread of its own.
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
  // Calls `read` from a thread of its own, first immediately, until it returns nothing or finish() is called.
  explicit LoadWatch(Read read, std::chrono::milliseconds between = std::chrono::milliseconds(50));
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;
  // Each number's median; none where nothing was read. Once.
  std::optional<GpuLoad> finish();

 private:
  std::vector<GpuLoad> seen_;  // the thread's, until it has ended
  std::jthread thread_;        // ends with the watch at the latest
};

}  // namespace tri
