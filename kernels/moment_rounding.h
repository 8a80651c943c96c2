// Stochastic rounding of the optimizer's moments to bf16, on the host and on the device.
//   round(x) = one of x's two bf16 neighbours, the upper one with probability (x - lower) / (upper - lower)
// So E[round(x)] = x: an increment survives on average even if it is less than half a last place, as (1 - beta2) · g²
// is relative to v for beta2 = 0.999, where rounding to nearest would never change v.
// The sixteen bits that bf16 drops are compared with sixteen random ones, which is exact. Four consecutive elements of
// a tensor share 128 random bits, a pure function of (the tensor's key, the step's key, the elements' place in the
// tensor). The place is the one in the global tensor, so that any layout uses the same bits (except for odd
// tensor-parallel shares: lib/optim/parameter_memory.cpp). Philox has seven rounds here, because it is most of the
// kernel's work.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "io/base/random.h"

namespace tri {

// Returns the bits of one of value's two bf16 neighbours: its upper sixteen bits, or one more, as the lower sixteen
// bits of `random` decide. A number that bf16 can hold, infinity and NaN are kept.
constexpr uint16_t round_stochastically(float value, uint32_t random) {
  const uint32_t rounded = std::bit_cast<uint32_t>(value) + (random & 0xFFFF);
  return static_cast<uint16_t>((value == value ? rounded : 0x7FC00000) >> 16);
}

// Random bits for elements [4 · quad, 4 · quad + 4) of a tensor: sixteen bits for each of an element's two moments.
struct MomentDraw {
  std::array<uint32_t, 4> bits;

  constexpr uint32_t exp_avg(int element) const { return bits[static_cast<size_t>(element)] & 0xFFFF; }
  constexpr uint32_t exp_avg_sq(int element) const { return bits[static_cast<size_t>(element)] >> 16; }
};
constexpr MomentDraw draw_of(uint64_t tensor_key, uint64_t step_key, int64_t quad) {
  return {philox<7>(tensor_key ^ step_key, static_cast<uint64_t>(quad))};
}

// Where a tensor's random bits come from, a row of MomentRounding::draws. The elements of a tensor-parallel share are
// runs of the global tensor, one every `stride`, the first at `offset`, counted in quads. With run 0, quad n of the
// share is quad n of the tensor.
struct alignas(16) TensorDraws {
  static constexpr int kColumns = 8;

  uint32_t key_low, key_high;
  int32_t first_block;  // of the share, in the numbering of MomentRounding::first_block
  uint32_t run, stride, offset;
  uint32_t unused[2];

  constexpr uint64_t key() const { return key_low | uint64_t{key_high} << 32; }
  // Returns the quad of the global tensor for a quad of the share.
  constexpr int64_t global_quad(uint32_t quad) const {
    return run == 0 ? int64_t{quad} : int64_t{quad / run} * stride + offset + quad % run;
  }
};
static_assert(sizeof(TensorDraws) == TensorDraws::kColumns * sizeof(int32_t));

}  // namespace tri
