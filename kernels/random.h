// Normal numbers addressed by their place in an unbounded tensor (io/base/random.h): every rank that computes an
// element gets the same number. A tensor-parallel share lies there in blocks of `block` elements, one every `stride`,
// the first at `offset`.
//   element(m) = m / block · stride + offset + m % block
//   out[i] = scale · random_normal(key, element(begin + i)) rounded to out's dtype; 0 where element >= valid
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/core/tensor.h"

namespace tri {

struct NormalValues {
  Tensor out;          // (n) f32|bf16: elements [begin, begin + n) of the share
  uint64_t key = 0;    // of the unbounded tensor
  float scale = 1.0f;  // standard deviation
  int64_t begin = 0;   // first element of the share
  int64_t block = 1;   // > 0
  int64_t stride = 1;  // >= offset + block, so that blocks do not overlap
  int64_t offset = 0;  // >= 0
  int64_t valid = std::numeric_limits<int64_t>::max();
};
void check(const NormalValues&);

// Returns the place in the unbounded tensor of the share's element m.
constexpr int64_t element_of(const NormalValues& v, int64_t m) {
  return m / v.block * v.stride + v.offset + m % v.block;
}

}  // namespace tri
