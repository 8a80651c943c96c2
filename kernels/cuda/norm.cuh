// Shared by the passes of LayerNorm and RMSNorm: formulas in kernels/norm.h.
//   inp, add, out, dout, ... (R, C) bf16|f32    weight, bias (C)    mean, rstd (R) f32
// Mapping: W = 1 to 16 warps per row, up to three 16-byte packs of it per lane in registers: global memory is read and
// written once. Blocks are persistent: a thread keeps its columns' weights in shared memory for all its rows, and while
// a group processes a row, the operands of the next are copied to shared memory (cp.async, each thread its own packs,
// so no barrier is needed). The warps of a row synchronise at a barrier.
// Limits: rows of whole 16-byte packs, up to 24 KiB (C 12288 in bf16), as far as the GPU's shared memory allows (C
// 11520 on sm_80 with a residual); norm_wide.cu processes all other rows. Bound: memory; parts of an operand are read
// when they are needed. Reference: kernels/cpu/norm.cpp.
#pragma once

#include <algorithm>

#include "kernels/cuda/context.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/parts.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/fp8.h"

namespace tri::cuda::norm {

constexpr int kThreads = 256;
constexpr int kMaxWarps = 16;
constexpr unsigned kMaxGroups = kThreads / 32;

// A block is (32 · W, groups) threads; each of its groups works on one row.
struct Shape {
  int64_t rows;
  int width;  // C
};
template <class Args>
Shape shape_of(const Args& n) {
  return {n.inp[0], static_cast<int>(n.inp[1])};
}

template <class T>
struct Forward {
  T* sum;
  const T *inp, *add, *add_bias, *weight, *bias;
  float *mean, *rstd;  // mean: LayerNorm only
  float eps, offset;
  MoreParts<T> more_adds;
};
template <class T>
Forward<T> forward_args(const NormForward& n) {
  return {pointer<T>(n.sum),
          pointer<T>(n.inp),
          pointer<T>(n.add),
          pointer<T>(n.add_bias),
          pointer<T>(n.weight),
          pointer<T>(n.bias),
          pointer<float>(n.mean),
          pointer<float>(n.rstd),
          n.eps,
          n.offset,
          more_parts<T>(n.add)};
}

// Adds the norm's offset to weights. Adding 0 changes no bit of what follows.
template <int kVec>
__device__ __forceinline__ void add_offset(float (&weight)[kVec], float offset) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) weight[i] += offset;
}

// The destination of a forward pass' normed rows: a kernel copies the object that it is given, all its threads call
// begin() and end(), and put() elements from `at` on in between.
template <class T>
struct StoredRows {
  static constexpr size_t kSharedBytes = 0;
  static constexpr int64_t kMostPacks = INT64_MAX;  // per thread
  T* out;
  __device__ void begin() {}
  template <int kVec>
  __device__ __forceinline__ void put(int64_t at, const float (&x)[kVec]) {
    store_pack(out + at, pack_floats<T>(x));
  }
  __device__ void end() {}
};

template <class T>
struct Backward {
  T* dinp;
  const T *dresidual, *dout, *inp, *weight;
  const float *mean, *rstd;
  float* partial;  // (blocks, 2, C): sums of this block's rows for dweight and dbias
  float offset;
  MoreParts<T> more_douts;
};
template <class T>
Backward<T> backward_args(const NormBackward& n, float* partial) {
  return {pointer<T>(n.dinp),
          pointer<T>(n.dresidual),
          pointer<T>(n.dout),
          pointer<T>(n.inp),
          pointer<T>(n.weight),
          pointer<float>(n.mean),
          pointer<float>(n.rstd),
          partial,
          n.offset,
          more_parts<T>(n.dout)};
}
// Scratch for Backward::partial, and the second pass over it: norm_backward.cu.
float* column_partials(const Shape& s, unsigned blocks, CudaStream& stream);
void add_column_partials(const NormBackward& n, const float* partial, unsigned blocks, CudaStream& stream);

// Returns whether rows can be read sixteen bytes at a time.
template <class T>
bool in_packs(const NormForward& n) {
  return aligned<T>(n.inp[1], {n.out, n.sum, n.inp, n.add, n.add_bias, n.weight, n.bias});
}
template <class T>
bool in_packs(const NormBackward& n) {
  return aligned<T>(n.inp[1], {n.dinp, n.dresidual, n.dout, n.inp, n.weight});
}

// For rows of any width: norm_wide.cu.
void wide_forward(const NormForward& n, CudaStream& stream);
void wide_forward(const Fp8NormForward& n, CudaStream& stream);
void wide_backward(const NormBackward& n, CudaStream& stream);

// A thread's iteration over its rows: it owns packs p = 0 ... kPacks - 1 of each, blockDim.x packs apart.
template <int kVec>
struct Walk {
  int64_t row, rows;
  int64_t row_step;
  int64_t at, at_step;  // elements from the arrays' beginning to this thread's first pack, and to the next row's
  int first_column, pack_step, width;

  __device__ explicit Walk(const Shape& s)
      : row(blockIdx.x * int64_t{blockDim.y} + threadIdx.y),
        rows(s.rows),
        row_step(int64_t{gridDim.x} * blockDim.y),
        at_step(row_step * s.width),
        first_column(static_cast<int>(threadIdx.x) * kVec),
        pack_step(static_cast<int>(blockDim.x) * kVec),
        width(s.width) {
    at = row * width + first_column;
  }
  __device__ int column(int p) const { return first_column + p * pack_step; }
  __device__ bool owns(int p) const { return column(p) < width; }
  // A block's rows are processed together: its threads synchronise at barriers, including those without a row.
  __device__ bool block_has_rows() const { return row - threadIdx.y < rows; }
  __device__ bool has_row() const { return row < rows; }
  __device__ void advance() { row += row_step, at += at_step; }
};

// The inputs of a kernel in shared memory: kVectors (C) vectors for the whole block, and every thread's packs of
// kArrays rows in two stages, one being copied while the other is processed. Neighbouring threads' packs are neighbours
// (asynchronous copies to scattered places take a third more time).
template <class T, int kVec, int kPacks, int kArrays, int kVectors>
class Operands {
 public:
  using Vector = Pack<T, kVec>;
  static_assert(sizeof(Vector) == 16);
  static constexpr size_t bytes(dim3 block) {
    return sizeof(Vector) * kPacks * block.x * (2 * kArrays * block.y + kVectors);
  }

  __device__ Operands(unsigned char* shared, const T* const (&arrays)[kArrays], const T* const (&vectors)[kVectors],
                      const Walk<kVec>& walk)
      : shared_vectors_(reinterpret_cast<Vector*>(shared)),
        thread_packs_(shared_vectors_ + kVectors * kPacks * blockDim.x + threadIdx.y * blockDim.x + threadIdx.x),
        threads_(blockDim.x * blockDim.y) {
#pragma unroll
    for (int a = 0; a < kArrays; ++a) arrays_[a] = arrays[a];
    fetch(walk, 0);
    if (threadIdx.y == 0)
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
          if (vectors[v] != nullptr && walk.owns(p))
            shared_vectors_[vector_slot(v, p)] = load_pack<kVec>(vectors[v] + walk.column(p));
    __syncthreads();
  }

  // Starts the copies of the row that is `ahead` steps ahead; each call adds one to wait for.
  __device__ void fetch(const Walk<kVec>& walk, int ahead) {
    const int64_t at = walk.at + ahead * walk.at_step;
    if (walk.row + ahead * walk.row_step < walk.rows)
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (walk.owns(p))
#pragma unroll
          for (int a = 0; a < kArrays; ++a)
            copy_async16(shared_address(thread_packs_ + slot(stage_ ^ ahead, a, p)),
                         arrays_[a] + at + p * walk.pack_step, true);
    copy_async_commit();
  }
  // Starts copying the next row and waits for this one.
  __device__ void begin_row(const Walk<kVec>& walk) {
    fetch(walk, 1);
    copy_async_wait<1>();
  }
  __device__ void end_row() { stage_ ^= 1; }

  __device__ void row(int array, int p, float (&x)[kVec]) const { unpack(thread_packs_[slot(stage_, array, p)], x); }
  // Later reads of the pack return `x`.
  __device__ void keep(int array, int p, const float (&x)[kVec]) {
    thread_packs_[slot(stage_, array, p)] = pack_floats<T>(x);
  }
  __device__ void vector(int v, int p, float (&x)[kVec]) const { unpack(shared_vectors_[vector_slot(v, p)], x); }

 private:
  __device__ static unsigned vector_slot(int v, int p) {
    return static_cast<unsigned>(v * kPacks + p) * blockDim.x + threadIdx.x;
  }

  __device__ unsigned slot(int stage, int array, int p) const {
    return static_cast<unsigned>((stage * kArrays + array) * kPacks + p) * threads_;
  }

  Vector *shared_vectors_, *thread_packs_;
  unsigned threads_;
  const T* arrays_[kArrays];
  int stage_ = 0;
};

// Sums over the W warps of a row, in every thread of them.
class RowSums {
 public:
  // Every thread of the block must call it. The slots alternate: a thread that is early at the next sum writes to the
  // other slot and passes its barrier only after all have read this one.
  template <int kSums>
  __device__ __forceinline__ void add(float (&values)[kSums]) {
#pragma unroll
    for (float& value : values) value = warp_sum(value);
    const unsigned warps = blockDim.x / 32;
    if (warps == 1) return;
    __shared__ float shared[2][kMaxGroups][kMaxWarps][2];
    auto& row = shared[slot_][threadIdx.y];
    slot_ ^= 1;
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int k = 0; k < kSums; ++k) row[threadIdx.x / 32][k] = values[k];
    __syncthreads();
#pragma unroll
    for (float& value : values) value = 0;
    for (unsigned warp = 0; warp < warps; ++warp)
#pragma unroll
      for (int k = 0; k < kSums; ++k) values[k] += row[warp][k];
  }

 private:
  int slot_ = 0;
};

// Shared memory of RowSums, in addition to the operands.
constexpr size_t kStaticBytes = sizeof(float) * 2 * kMaxGroups * kMaxWarps * 2;

// Calls launch(kPacks, dim3(32 · W, groups)) for rows of `width` elements read `vec` at a time, with `most` packs per
// thread if that many warps suffice. Returns its result, or false for rows that are too wide.
template <int kVec, class Launch>
bool choose_mapping(int64_t width, int64_t most, Launch launch) {
  const int64_t packs = width / kVec;
  const auto warps_with = [&](int64_t per_lane) { return (packs + 32 * per_lane - 1) / (32 * per_lane); };
  const auto launch_with = [&](auto per_lane) {
    const auto warps = static_cast<unsigned>(warps_with(decltype(per_lane)::value));
    return launch(per_lane, dim3(32 * warps, std::max(1U, kMaxGroups / warps)));
  };
  if (warps_with(3) > kMaxWarps) return false;
  const int64_t per_lane = std::min(most, warps_with(1));
  if (per_lane == 1) return launch_with(std::integral_constant<int, 1>{});
  if (per_lane == 2) return launch_with(std::integral_constant<int, 2>{});
  return launch_with(std::integral_constant<int, 3>{});
}

// Returns whether a block may have this much dynamic shared memory on the stream's GPU.
inline bool fits(size_t shared, CudaStream& stream) {
  return static_cast<int64_t>(shared + kStaticBytes) <= stream.context().properties().max_shared_bytes;
}

// Returns the blocks of `kernel` that fill the device, at most one per group of rows.
template <class Kernel>
unsigned persistent_blocks(Kernel kernel, dim3 block, size_t shared, int64_t rows, CudaStream& stream) {
  if (shared > 40 * 1024)  // the rest of the 48 KiB that need no opt-in is for static arrays
    TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  int per_sm = 1;
  TRI_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, static_cast<int>(block.x * block.y), shared));
  const int64_t wanted = (rows + block.y - 1) / block.y;
  return static_cast<unsigned>(std::min<int64_t>(wanted, int64_t{std::max(per_sm, 1)} * num_multiprocessors(stream)));
}

}  // namespace tri::cuda::norm
