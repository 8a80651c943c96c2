#pragma once

#include <algorithm>
#include <vector>

namespace tri {

// Returns the median; the upper of the two middle values for an even number, and 0 without values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace tri
