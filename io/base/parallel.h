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

// The same over items of different weights, on `threads` threads: neighbouring items of about equal weight together.
// For reading a file: storage likes a few long streams, and dislikes threads that take turns.
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
