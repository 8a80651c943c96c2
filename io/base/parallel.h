// Loops over many independent elements on all cores that this process may use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace tri {

// Calls f(begin, end) for ranges that cover [0, count), at once, `grain` elements each or more; returns when all are
// done. f does not throw.
template <class F>
void parallel_ranges(int64_t count, int64_t grain, F f) {
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(count / grain, 1, cores);
  std::vector<std::jthread> threads;
  for (int64_t part = 1; part < parts; ++part)
    threads.emplace_back([=, &f] { f(count * part / parts, count * (part + 1) / parts); });
  f(int64_t{0}, count / parts);
}

}  // namespace tri
