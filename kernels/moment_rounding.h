// Stochastic rounding of the optimizer's moments to bf16, on the host and on the device.
//   round(x) = one of x's two bf16 neighbours, the upper one with probability (x - lower) / (upper - lower)
// So E[round(x)] = x: what a step adds is kept on average even where it is less than half a last place, as
// (1 - beta2) · g² is relative to v for beta2 = 0.999, where rounding to nearest would stand still.
// The sixteen bits that bf16 drops decide, against sixteen random ones: exact. Four consecutive elements of a tensor
// share one draw of 128 bits, a pure function of (the tensor's key, the step's key, the elements' place in the tensor).
// That place is the one in the global tensor, so that any layout draws the same (except for odd tensor-parallel shares:
// lib/optim/parameter_memory.cpp). Philox has seven rounds here: the draw is most of the kernel's work.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "io/base/random.h"

namespace tri {

// The bits of one of value's two neighbours in bf16: the upper sixteen bits of `value`, or one more, as `random`, its
// lower sixteen bits, falls. A number that bf16 holds stays as it is. Infinity stays infinity, NaN stays NaN.
constexpr uint16_t round_stochastically(float value, uint32_t random) {
  const uint32_t rounded = std::bit_cast<uint32_t>(value) + (random & 0xFFFF);
  return static_cast<uint16_t>((value == value ? rounded : 0x7FC00000) >> 16);
}

// Random bits for elements [4 · quad, 4 · quad + 4) of a tensor: sixteen for each of an element's two moments.
struct MomentDraw {
  std::array<uint32_t, 4> bits;

  constexpr uint32_t exp_avg(int element) const { return bits[static_cast<size_t>(element)] & 0xFFFF; }
  constexpr uint32_t exp_avg_sq(int element) const { return bits[static_cast<size_t>(element)] >> 16; }
};
constexpr MomentDraw draw_of(uint64_t tensor_key, uint64_t step_key, int64_t quad) {
  return {philox<7>(tensor_key ^ step_key, static_cast<uint64_t>(quad))};
}

// What a tensor draws, a row of MomentRounding::draws. The elements of a tensor-parallel share lie in the global tensor
// in runs, one every `stride`, the first at `offset`, counted in quads; run 0: quad n of the share draws as quad n.
struct alignas(16) TensorDraws {
  static constexpr int kColumns = 8;

  uint32_t key_low, key_high;
  int32_t first_block;  // of the share, in a numbering that MomentRounding::first_block shares
  uint32_t run, stride, offset;
  uint32_t unused[2];

  constexpr uint64_t key() const { return key_low | uint64_t{key_high} << 32; }
  // Of the global tensor, for a quad of the share.
  constexpr int64_t global_quad(uint32_t quad) const {
    return run == 0 ? int64_t{quad} : int64_t{quad / run} * stride + offset + quad % run;
  }
};
static_assert(sizeof(TensorDraws) == TensorDraws::kColumns * sizeof(int32_t));

}  // namespace tri
