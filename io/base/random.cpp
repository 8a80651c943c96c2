#include "io/base/random.h"

#include <cmath>
#include <numbers>

namespace tri {

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

uint64_t random_u64(uint64_t key, uint64_t counter) {
  const auto bits = philox(key, counter);
  return (uint64_t{bits[0]} << 32) | bits[1];
}

double random_uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(random_u64(key, counter) >> 11) * 0x1.0p-53;
}

float random_normal(uint64_t key, uint64_t counter) {
  const auto bits = philox(key, counter);
  const uint64_t a = ((uint64_t{bits[0]} << 32) | bits[1]) >> 11, b = ((uint64_t{bits[2]} << 32) | bits[3]) >> 11;
  const double u = (static_cast<double>(a) + 1.0) * 0x1.0p-53;  // (0, 1]: the logarithm is finite
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(b) * 0x1.0p-53;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
}

uint64_t derive_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return random_u64(seed, hash);
}

}  // namespace tri
