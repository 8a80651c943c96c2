// Shared by both passes of the attention kernels for Hopper; formulas in kernels/attention.h, limits in
// flash_attention.cuh.
// Tensors are read and written as boxes of a head's 64 columns (hopper.cuh). A head of 96 has a second box that is half
// empty: columns beyond the head are read as zeros and not written, and so are rows beyond the sequence.
// Bound: tensor cores, in practice at the GPU's power limit.
#pragma once

#include <algorithm>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/flash_attention.cuh"
#include "kernels/cuda/hopper.cuh"

namespace tri::cuda::flash {

constexpr int head_boxes(int head_size) { return (head_size + 63) / 64; }

// A map of (B, T, heads, HS) bf16 from head `first` on, with boxes of `rows` tokens and 64 of a head's columns.
inline CUtensorMap box_map(const void* data, int64_t batch, int seq_len, int64_t heads, int head_size, int rows,
                           int64_t first = 0) {
  static const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  const auto wide = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const int64_t head_bytes = int64_t{head_size} * 2, row_bytes = heads * head_bytes;
  const cuuint64_t shape[4] = {wide(head_size), wide(heads - first), wide(seq_len), wide(batch)};
  const cuuint64_t strides[3] = {wide(head_bytes), wide(row_bytes), wide(seq_len * row_bytes)};
  const cuuint32_t box[4] = {hopper::kBoxColumns, 1, static_cast<cuuint32_t>(rows), 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  char* const from = static_cast<char*>(const_cast<void*>(data)) + first * head_bytes;
  driver_check(
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, from, shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
  return map;
}

// Initialises the barriers of two rings of stages, in one thread before the block's first __syncthreads. A stage is
// full when its boxes have arrived, and free when that many warps are done with it. A ring's barriers are contiguous.
// Call it last in the set-up: a block's other barriers come before it.
template <int kStages>
__device__ __forceinline__ void init_rings(uint32_t first_full, uint32_t first_free, uint32_t second_full,
                                           uint32_t second_free, int warps) {
  for (int stage = 0; stage < kStages; ++stage) {
    hopper::barrier_init(first_full + 8 * stage, 1);
    hopper::barrier_init(first_free + 8 * stage, warps);
    hopper::barrier_init(second_full + 8 * stage, 1);
    hopper::barrier_init(second_free + 8 * stage, warps);
  }
  hopper::barrier_init_done();
}

}  // namespace tri::cuda::flash
