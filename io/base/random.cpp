#include "io/base/random.h"

#include <cmath>

namespace tri {

uint64_t random_u64(uint64_t key, uint64_t counter) {
  const auto bits = philox(key, counter);
  return (uint64_t{bits[0]} << 32) | bits[1];
}

double random_uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(random_u64(key, counter) >> 11) * 0x1.0p-53;
}

float random_normal(uint64_t key, uint64_t counter) {
  const PolarPoint point = polar_point(key, counter);
  return static_cast<float>(std::sqrt(-2.0 * std::log(point.u)) * std::cos(point.angle));
}

uint64_t derive_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return random_u64(seed, hash);
}

}  // namespace tri
