// Parallel loops over independent elements on all cores of this process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace tri {

// Calls f(begin, end) concurrently for ranges that cover [0, count), each of at least `grain` elements, and returns
// when all are done. f must not throw.
template <class F>
void parallel_ranges(int64_t count, int64_t grain, F f) {
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(count / grain, 1, cores);
  std::vector<std::jthread> threads;
  for (int64_t part = 1; part < parts; ++part)
    threads.emplace_back([=, &f] { f(count * part / parts, count * (part + 1) / parts); });
  f(int64_t{0}, count / parts);
}

// The same over items of different weights, on `threads` threads: consecutive items of about equal total weight form a
// range. For reading files, since storage is faster with a few long streams than with interleaved threads.
template <class F>
void parallel_by_weight(const std::vector<int64_t>& weights, int threads, F f) {
  int64_t total = 0, done = 0;
  for (const int64_t weight : weights) total += weight;
  std::vector<std::jthread> pool;
  int64_t begin = 0;
  const auto count = static_cast<int64_t>(weights.size());
  for (int part = 1; part < threads; ++part) {
    int64_t end = begin;
    while (end < count && done + weights[static_cast<size_t>(end)] / 2 < total * part / threads)
      done += weights[static_cast<size_t>(end++)];
    if (begin < end) pool.emplace_back([=, &f] { f(begin, end); });
    begin = end;
  }
  f(begin, count);
}

inline int num_cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

}  // namespace tri
