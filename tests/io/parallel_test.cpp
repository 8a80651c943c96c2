#include "io/base/parallel.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

namespace tri::test {
namespace {

TEST(ParallelByWeight, covers_every_item_once_in_parts_of_about_equal_weight) {
  const std::vector<std::vector<int64_t>> lists = {
      {}, {0}, {5}, {0, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 1}, {100, 1, 1}, {1, 1, 100}, {3, 0, 7, 2, 2, 9, 4, 1, 1, 6}};
  for (const auto& weights : lists)
    for (const int threads : {1, 2, 3, 16}) {
      std::mutex mutex;
      std::vector<int> times(weights.size());
      int64_t heaviest = 0;
      parallel_by_weight(weights, threads, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(mutex);
        int64_t weight = 0;
        for (int64_t i = begin; i < end; ++i) {
          ++times[static_cast<size_t>(i)];
          weight += weights[static_cast<size_t>(i)];
        }
        heaviest = std::max(heaviest, weight);
      });
      EXPECT_EQ(times, std::vector<int>(weights.size(), 1)) << threads;
      const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
      const int64_t largest = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
      EXPECT_LE(heaviest, total / threads + largest + 1) << threads;
    }
}

}  // namespace
}  // namespace tri::test
