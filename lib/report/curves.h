// Reduces long series to few points: adjacent steps form a point with their mean and their extremes.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lib/observe/metrics/metrics_reader.h"

namespace tri {

// Items [first, second) of a series form a point; about equally many each, and at most `points` points.
using Points = std::vector<std::pair<size_t, size_t>>;
inline Points points_of(size_t count, size_t points) {
  const size_t made = std::min(count, points);
  Points list;
  for (size_t i = 0; i < made; ++i) list.emplace_back(i * count / made, (i + 1) * count / made);
  return list;
}

// A value for each point; kUnknown if none of its items has one.
struct Curve {
  std::vector<double> mean, low, high;
};
template <class Item, class Value>
Curve curve_of(std::span<const Item> items, const Points& points, const Value& value) {
  Curve curve;
  for (const auto& [begin, end] : points) {
    double sum = 0, low = kUnknown, high = kUnknown;
    size_t known = 0;
    for (size_t i = begin; i < end; ++i) {
      const double v = value(items[i]);
      if (!std::isfinite(v)) continue;
      sum += v;
      low = known == 0 ? v : std::min(low, v);
      high = known == 0 ? v : std::max(high, v);
      ++known;
    }
    curve.mean.push_back(known > 0 ? sum / static_cast<double>(known) : kUnknown);
    curve.low.push_back(low);
    curve.high.push_back(high);
  }
  return curve;
}

}  // namespace tri
