// Ways to compare the elements of an operand with the expected ones; each call chooses one.
//   same_bits         equal bits
//   elements(t)       each:  |actual - expected| <= t · (|expected| + root mean square of the operand)
//   vectors(t, n)     each n consecutive elements, as a vector:  |actual - expected| <= t · (|expected| + root mean
//                     square of such vectors' lengths / 20). For kernels whose inner roundings show in single elements
//                     that nearly cancel; a missing vector is detected, even if it is short compared with others
//   draws(t)          bf16 numbers that are rounded with the same random bits: as elements(t), but one in 1000, or two
//                     in all, may be the next bf16 number, since the last bit before the rounding may differ
// NaN and infinities must be at the same places in both; the finite elements are compared.
#pragma once

#include <bit>
#include <cstdlib>
#include <limits>
#include <string>

#include "tests/kernels/op_test.h"

namespace tri::test {

struct Comparison {
  double tolerance = 0;
  int64_t vector = 0;       // elements; 0: each element by itself
  bool randomized = false;  // some may be the adjacent bf16 number
};
inline constexpr Comparison same_bits{};
inline Comparison elements(double tolerance) { return {tolerance, 0}; }
inline Comparison vectors(double tolerance, int64_t length) { return {tolerance, length}; }
inline Comparison draws(double tolerance) { return {.tolerance = tolerance, .randomized = true}; }

// Returns whether no bf16 number is between the two.
inline bool are_next_in_bf16(double a, double b) {
  const auto place = [](double value) {
    const auto bits = std::bit_cast<int32_t>(static_cast<float>(value));
    return (bits < 0 ? std::numeric_limits<int32_t>::min() - bits : bits) >> 16;
  };
  return std::abs(place(a) - place(b)) <= 1;
}

// Describes the first difference that `by` does not allow; empty if there is none.
inline std::string difference(const Values& actual, const Values& expected, const Comparison& by) {
  if (actual.size() != expected.size()) return fmt::format("{} elements, not {}", actual.size(), expected.size());
  const auto alike = [](double a, double b) {
    return std::isfinite(a) ? std::isfinite(b) : std::isnan(a) ? std::isnan(b) : a == b;
  };
  double sum = 0;
  size_t finite = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!alike(actual[i], expected[i])) return fmt::format("[{}] is {}, expected {}", i, actual[i], expected[i]);
    if (std::isfinite(expected[i])) sum += expected[i] * expected[i], ++finite;
  }
  const double mean_square = finite == 0 ? 0.0 : sum / static_cast<double>(finite);
  const size_t length = by.vector == 0 ? 1 : static_cast<size_t>(by.vector);
  if (actual.size() % length != 0) return fmt::format("{} elements are no vectors of {}", actual.size(), length);
  const double typical = std::sqrt(mean_square * static_cast<double>(length)) * (by.vector == 0 ? 1.0 : 0.05);
  size_t next_numbers = 0;
  const size_t most_next = by.randomized ? actual.size() / 1000 + 2 : 0;
  for (size_t begin = 0; begin < actual.size(); begin += length) {
    double distance = 0, size = 0;
    for (size_t i = begin; i < begin + length; ++i) {
      if (!std::isfinite(expected[i])) continue;
      distance += (actual[i] - expected[i]) * (actual[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    if (std::sqrt(distance) <= by.tolerance * (std::sqrt(size) + typical)) continue;
    if (by.randomized && are_next_in_bf16(actual[begin], expected[begin]) && ++next_numbers <= most_next) continue;
    if (next_numbers > most_next)
      return fmt::format("[{}] is {}, expected {}: more than {} of {} elements are the next bf16 number", begin,
                         actual[begin], expected[begin], most_next, actual.size());
    return fmt::format("[{}] is {}, expected {}; of {} element(s) of length {} the distance is {}", begin,
                       actual[begin], expected[begin], length, std::sqrt(size), std::sqrt(distance));
  }
  return {};
}

}  // namespace tri::test
