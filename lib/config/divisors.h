// Divisors of numbers, for degrees of parallelism and sizes of microbatches.
#pragma once

#include <cstdint>
#include <vector>

namespace tri {

// Returns the divisors of n, ascending.
inline std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d * d != n) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

}  // namespace tri
