// Tensor-core building blocks for sm_80 and later: asynchronous copies, ldmatrix, mma m16n8k16 of bf16 with fp32
// accumulation, and the swizzled shared-memory tiles for them.
//
// Fragments of mma m16n8k16, lane = 4 · g + t (g 0..7, t 0..3); a register holds two neighbours, the lower index low:
//   A (16 x 16): a0 (g, 2t)  a1 (g + 8, 2t)  a2 (g, 2t + 8)  a3 (g + 8, 2t + 8)
//   B (16 x 8, k x n): b0 (2t, g)  b1 (2t + 8, g)
//   C (16 x 8): c0, c1 (g, 2t), (g, 2t + 1)  c2, c3 the same of row g + 8
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device_math.cuh"

namespace tri::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Returns from + row * bytes in one instruction, provided that the compiler does not widen the factors first.
__device__ __forceinline__ const char* row_address(const void* from, int row, int bytes) {
  const char* at;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(bytes), "l"(from));
  return at;
}

// Copies 16 (4) bytes to shared memory, or zeros, without reading, if not `valid`.
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async4(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8. Register m of a lane gets matrix m's
// elements (g, 2t), (g, 2t + 1), transposed: (2t, g), (2t + 1, g).
__device__ __forceinline__ void load_matrix(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}
__device__ __forceinline__ void load_matrix_transposed(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}

// The rows and chunks (of 8 elements) whose addresses a lane gives to load_matrix for a 16 x 16 block. Order "rows
// first": matrices (0, 0), (8, 0), (0, 8), (8, 8), the A operand of rows as stored and, transposed, the B operand of
// two n-tiles where k runs over the rows. Order "columns first": (0, 0), (0, 8), (8, 0), (8, 8), the B operand of two
// n-tiles where n runs over the rows and, transposed, the A operand of stored columns.
__device__ __forceinline__ int rows_first_row(int lane) { return lane & 15; }
__device__ __forceinline__ int rows_first_chunk(int lane) { return lane >> 4; }
__device__ __forceinline__ int columns_first_row(int lane) { return (lane & 7) | ((lane >> 4) << 3); }
__device__ __forceinline__ int columns_first_chunk(int lane) { return (lane >> 3) & 1; }

// c += a · b.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ void store_shared(uint32_t to, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared16(uint32_t to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ float load_shared_float(uint32_t from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
__device__ __forceinline__ float2 load_shared_float2(uint32_t from) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(from) : "memory");
  return value;
}
__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// A tile of kColumns bf16 a row in shared memory. The eight rows of a matrix that load_matrix reads lie in different
// banks: 16-byte chunks are permuted within the row by an XOR with the row number. Tiles start at multiples of 512
// bytes.
template <int kColumns>
struct SharedTile {
  static_assert(kColumns == 64 || kColumns == 96 || kColumns == 128 || kColumns == 256);
  static constexpr int kChunks = kColumns / 8;
  static constexpr uint32_t kRow = kColumns * 2;  // bytes

  // Returns the bytes from the tile's start. Rows that are a multiple of 8 apart have the same permutation: add kRow
  // each.
  static __device__ __forceinline__ uint32_t at(int row, int chunk) {
    // A row of 96 is 12 chunks: neighbours start half of the banks apart, so pairs of rows share one of four
    // permutations.
    const int permuted = kColumns == 96 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
    return static_cast<uint32_t>(row) * kRow + static_cast<uint32_t>(permuted) * 16;
  }
  // The address `chunks` further in the row than `from`, which includes the tile's start; the two chunk numbers may
  // have no bit in common.
  static __device__ __forceinline__ uint32_t step(uint32_t from, int chunks) {
    const auto ahead = static_cast<uint32_t>(chunks);
    return kColumns == 96 ? (from ^ ((ahead & 3) << 4)) + (ahead >> 2) * 64 : from ^ (ahead << 4);
  }
};

}  // namespace tri::cuda
