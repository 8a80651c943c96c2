// Counter-based random numbers: a pure function of (key, counter), so any rank can evaluate any element.
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tri {

// 128 random bits for (key, counter).
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter);

// 64 random bits for (key, counter).
uint64_t random_u64(uint64_t key, uint64_t counter);

// Uniform in [0, 1), 53 bits.
double random_uniform(uint64_t key, uint64_t counter);

// Standard normal, by Box-Muller from one counter's 128 bits: element `counter` of an endless normal tensor.
float random_normal(uint64_t key, uint64_t counter);

// A key derived from a seed and a name (FNV-1a, then mixed), so that streams never share counters.
uint64_t derive_key(uint64_t seed, std::string_view name);

}  // namespace tri
