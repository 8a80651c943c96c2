// Counter-based random numbers: a pure function of (key, counter), so any rank can evaluate any element.
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
// The constexpr functions also serve device code (kernels/cuda/random.cu).
#pragma once

#include <array>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace tri {

// Returns 128 random bits for (key, counter). Seven rounds pass the authors' tests (BigCrush); ten are their standard.
template <int kRounds = 10>
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// A point for Box-Muller from one counter's 128 bits: sqrt(-2 · log(u)) · cos(angle) is standard normal.
struct PolarPoint {
  double u;      // (0, 1], so that the logarithm is finite
  double angle;  // [0, 2 · pi)
};
constexpr PolarPoint polar_point(uint64_t key, uint64_t counter) {
  const std::array<uint32_t, 4> bits = philox(key, counter);
  const uint64_t a = ((uint64_t{bits[0]} << 32) | bits[1]) >> 11, b = ((uint64_t{bits[2]} << 32) | bits[3]) >> 11;
  return {.u = (static_cast<double>(a) + 1.0) * 0x1.0p-53,
          .angle = 2.0 * std::numbers::pi * static_cast<double>(b) * 0x1.0p-53};
}

// Returns 64 random bits for (key, counter).
uint64_t random_u64(uint64_t key, uint64_t counter);

// Returns a uniform number in [0, 1) with 53 bits.
double random_uniform(uint64_t key, uint64_t counter);

// Returns a standard normal number, by Box-Muller in double: element `counter` of an endless normal tensor.
float random_normal(uint64_t key, uint64_t counter);

// Returns a key derived from a seed and a name (FNV-1a, then mixed), so that streams never share counters.
uint64_t derive_key(uint64_t seed, std::string_view name);

}  // namespace tri
