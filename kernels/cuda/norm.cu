// Residual addition + LayerNorm/RMSNorm, forward and backward: formulas in kernels/norm.h.
//   inp, add, out, dout, ... (R, C) bf16|f32    weight, bias (C)    mean, rstd (R) f32
// Mapping: W = 1 to 16 warps a row, a lane up to three 16-byte packs of it in registers: global memory is read and
// written once. Blocks are persistent: a thread keeps its columns' weights in shared memory over all its rows, and
// while a group works on a row, the next one's operands are on their way to shared memory (cp.async, each thread its
// own packs, so that no barrier is needed). The warps of a row meet at a barrier. Backward: a thread keeps
// its columns' parameter gradients in registers too; a second kernel adds the blocks' sums in a fixed order. Limits: C
// up to 32768 in bf16, 16384 in fp32; up to 4096 where rows are no multiple of 16 bytes. Bound: memory; R·C elements 2
// times forward (4 with a residual), 4 backward (3 without dresidual), and once more a part of an operand that comes in
// several: those parts are read when they are needed. Mirror: kernels/cpu/norm.cpp.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxWarps = 16;
constexpr unsigned kMaxGroups = kThreads / 32;

// A block is (32 · W, groups) threads; each of its groups works on one row.
struct Shape {
  int64_t rows;
  int width;  // C
};

// A thread's way through its rows: it owns packs p = 0 ... kPacks - 1 of each, blockDim.x packs apart.
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
  // A block's rows are worked on together: its threads meet at barriers, those without a row too.
  __device__ bool block_has_rows() const { return row - threadIdx.y < rows; }
  __device__ bool has_row() const { return row < rows; }
  __device__ void advance() { row += row_step, at += at_step; }
};

// What a kernel reads, in shared memory: kVectors (C) vectors for the whole block, and every thread's packs of kArrays
// rows in two stages, one of them on its way while the other is worked on; neighbouring threads' packs are neighbours
// (asynchronous copies to scattered places take a third more time). Where kStaged is false (rows too long, or of single
// elements) everything is read from global memory when it is needed.
template <class T, int kVec, int kPacks, int kArrays, int kVectors>
class Operands {
 public:
  using Vector = Pack<T, kVec>;
  static constexpr bool kStaged = sizeof(Vector) == 16 && kPacks <= 3;
  static constexpr size_t bytes(dim3 block) {
    return kStaged ? sizeof(Vector) * kPacks * block.x * (2 * kArrays * block.y + kVectors) : 0;
  }

  __device__ Operands(unsigned char* shared, const T* const (&arrays)[kArrays], const T* const (&vectors)[kVectors],
                      const Walk<kVec>& walk)
      : shared_vectors_(reinterpret_cast<Vector*>(shared)),
        own_(shared_vectors_ + kVectors * kPacks * blockDim.x + threadIdx.y * blockDim.x + threadIdx.x),
        threads_(blockDim.x * blockDim.y) {
#pragma unroll
    for (int a = 0; a < kArrays; ++a) arrays_[a] = arrays[a];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) vectors_[v] = vectors[v];
    fetch(walk, 0);
    if constexpr (kStaged) {
      if (threadIdx.y == 0)
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
#pragma unroll
          for (int p = 0; p < kPacks; ++p)
            if (vectors[v] != nullptr && walk.owns(p))
              shared_vectors_[vector_slot(v, p)] = load_pack<kVec>(vectors[v] + walk.column(p));
      __syncthreads();
    }
  }

  // Starts the copies of the row that `ahead` steps are to come; every call is one to wait for.
  __device__ void fetch(const Walk<kVec>& walk, int ahead) {
    if constexpr (kStaged) {
      const int64_t at = walk.at + ahead * walk.at_step;
      if (walk.row + ahead * walk.row_step < walk.rows)
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
          if (walk.owns(p))
#pragma unroll
            for (int a = 0; a < kArrays; ++a)
              copy_async16(shared_address(own_ + slot(stage_ ^ ahead, a, p)), arrays_[a] + at + p * walk.pack_step,
                           true);
      copy_async_commit();
    }
  }
  // The next row on its way, this one there.
  __device__ void begin_row(const Walk<kVec>& walk) {
    if constexpr (kStaged) {
      fetch(walk, 1);
      copy_async_wait<1>();
    }
  }
  __device__ void end_row() { stage_ ^= 1; }

  __device__ void row(const Walk<kVec>& walk, int array, int p, float (&x)[kVec]) const {
    if constexpr (kStaged)
      unpack(own_[slot(stage_, array, p)], x);
    else
      unpack(load_pack<kVec>(arrays_[array] + walk.at + p * walk.pack_step), x);
  }
  // Later reads of the pack give `x`; where nothing is staged they do not.
  __device__ void keep(int array, int p, const float (&x)[kVec]) {
    if constexpr (kStaged) own_[slot(stage_, array, p)] = pack_floats<T>(x);
  }
  __device__ void vector(const Walk<kVec>& walk, int v, int p, float (&x)[kVec]) const {
    if constexpr (kStaged)
      unpack(shared_vectors_[vector_slot(v, p)], x);
    else
      unpack(load_pack<kVec>(vectors_[v] + walk.column(p)), x);
  }

 private:
  __device__ static unsigned vector_slot(int v, int p) {
    return static_cast<unsigned>(v * kPacks + p) * blockDim.x + threadIdx.x;
  }

  __device__ unsigned slot(int stage, int array, int p) const {
    return static_cast<unsigned>((stage * kArrays + array) * kPacks + p) * threads_;
  }

  Vector *shared_vectors_, *own_;
  unsigned threads_;
  const T *arrays_[kArrays], *vectors_[kVectors];
  int stage_ = 0;
};

// The parts of an operand (P, R, C) behind its first.
template <class T>
struct MoreParts {
  const T* first;  // part 1
  int64_t stride;  // R · C
  int count;       // P - 1
};

template <class T>
MoreParts<T> more_parts(const Tensor& operand) {
  const int64_t parts = operand.empty() ? 1 : num_parts(operand);
  const int64_t stride = parts > 1 ? operand.numel() / parts : 0;
  return {parts > 1 ? pointer<T>(operand) + stride : nullptr, stride, static_cast<int>(parts) - 1};
}

// x, the pack at `at` of the first part, becomes that of the sum, rounded to T.
template <int kVec, class T>
__device__ __forceinline__ void add_parts(const MoreParts<T>& parts, int64_t at, float (&x)[kVec]) {
  const T* part = parts.first + at;
#pragma unroll 4
  for (int k = 0; k < parts.count; ++k, part += parts.stride) {
    float y[kVec];
    unpack(load_pack<kVec>(part), y);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] += y[i];
  }
  unpack(pack_floats<T>(x), x);
}

// Sums over the W warps of a row, in every thread of them.
class RowSums {
 public:
  // Call it in every thread of the block alike. The slots alternate: whoever is first at the next sum writes to the
  // other one, and passes its barrier only when all have read this one.
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

template <class T>
struct Forward {
  T *out, *sum;
  const T *inp, *add, *add_bias, *weight, *bias;
  float *mean, *rstd;  // mean: LayerNorm only
  float eps;
  MoreParts<T> more_adds;
};

// What is normalised: inp, or inp + add (+ add_bias), where add may come in parts.
enum class Add { kNothing, kWhole, kParts };
template <class T, int kVec, int kPacks, Add kAdd>
struct ForwardKernel {
  static constexpr bool kAdds = kAdd != Add::kNothing;
  using Inputs = Operands<T, kVec, kPacks, kAdds ? 2 : 1, kAdds ? 3 : 2>;
  static __device__ Inputs inputs(unsigned char* shared, const Forward<T>& a, const Walk<kVec>& walk) {
    if constexpr (kAdds)
      return Inputs(shared, {a.inp, a.add}, {a.weight, a.bias, a.add_bias}, walk);
    else
      return Inputs(shared, {a.inp}, {a.weight, a.bias}, walk);
  }
};

template <class T, int kVec, int kPacks, Add kAdd>
__global__ void __launch_bounds__(512) norm_forward_kernel(Forward<T> a, Shape s) {
  extern __shared__ __align__(16) unsigned char memory[];
  Walk<kVec> walk(s);
  constexpr bool kAdds = kAdd != Add::kNothing;
  auto operands = ForwardKernel<T, kVec, kPacks, kAdd>::inputs(memory, a, walk);
  RowSums sums;
  const float mean_factor = 1.0f / static_cast<float>(s.width);
  for (; walk.block_has_rows(); walk.advance(), operands.end_row()) {
    const bool active = walk.has_row();
    operands.begin_row(walk);
    float x[kPacks][kVec] = {}, total[1] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!active || !walk.owns(p)) continue;
      operands.row(walk, 0, p, x[p]);
      if constexpr (kAdds) {
        float y[kVec];
        operands.row(walk, 1, p, y);
        if constexpr (kAdd == Add::kParts) add_parts(a.more_adds, walk.at + p * walk.pack_step, y);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[p][i] += y[i];
        if (a.add_bias != nullptr) {
          operands.vector(walk, 2, p, y);
#pragma unroll
          for (int i = 0; i < kVec; ++i) x[p][i] += y[i];
        }
        const Pack<T, kVec> sum = pack_floats<T>(x[p]);
        store_pack(a.sum + walk.at + p * walk.pack_step, sum);
        unpack(sum, x[p]);  // what backward will see
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) total[0] += x[p][i];
    }
    if (a.mean != nullptr) sums.add(total);
    const float mean = a.mean == nullptr ? 0.0f : total[0] * mean_factor;
    float square[1] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!active || !walk.owns(p)) continue;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[p][i] -= mean;
        square[0] += x[p][i] * x[p][i];
      }
    }
    sums.add(square);
    const float rstd = rsqrtf(square[0] * mean_factor + a.eps);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!active || !walk.owns(p)) continue;
      float y[kVec];
      operands.vector(walk, 0, p, y);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[p][i] *= rstd * y[i];
      if (a.bias != nullptr) {
        operands.vector(walk, 1, p, y);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[p][i] += y[i];
      }
      store_pack(a.out + walk.at + p * walk.pack_step, pack_floats<T>(x[p]));
    }
    if (threadIdx.x != 0 || !active) continue;
    if (a.mean != nullptr) a.mean[walk.row] = mean;
    a.rstd[walk.row] = rstd;
  }
}

template <class T>
struct Backward {
  T* dinp;
  const T *dresidual, *dout, *inp, *weight;
  const float *mean, *rstd;
  float* partial;  // (blocks, 2, C): sums of this block's rows for dweight and dbias
  MoreParts<T> more_douts;
};

// kAdds: dresidual is added to dinp. kParts: dout comes in parts.
template <class T, int kVec, int kPacks, bool kAdds>
struct BackwardKernel {
  using Inputs = Operands<T, kVec, kPacks, kAdds ? 3 : 2, 1>;
  static __device__ Inputs inputs(unsigned char* shared, const Backward<T>& a, const Walk<kVec>& walk) {
    if constexpr (kAdds)
      return Inputs(shared, {a.inp, a.dout, a.dresidual}, {a.weight}, walk);
    else
      return Inputs(shared, {a.inp, a.dout}, {a.weight}, walk);
  }
};

template <class T, int kVec, int kPacks, bool kAdds, bool kParts>
__global__ void __launch_bounds__(512) norm_backward_kernel(Backward<T> a, Shape s) {
  extern __shared__ __align__(16) unsigned char memory[];
  Walk<kVec> walk(s);
  auto operands = BackwardKernel<T, kVec, kPacks, kAdds>::inputs(memory, a, walk);
  RowSums row_sums;
  const float mean_factor = 1.0f / static_cast<float>(s.width);
  float dweight[kPacks][kVec] = {}, dbias[kPacks][kVec] = {};
  float mean = 0, rstd = 0, next_mean = 0, next_rstd = 0;
  const auto fetch_statistics = [&](int64_t row) {
    if (row >= walk.rows) return;
    next_rstd = a.rstd[row];
    if (a.mean != nullptr) next_mean = a.mean[row];
  };
  fetch_statistics(walk.row);
  for (; walk.block_has_rows(); walk.advance(), operands.end_row()) {
    mean = next_mean, rstd = next_rstd;
    fetch_statistics(walk.row + walk.row_step);
    const bool active = walk.has_row();
    operands.begin_row(walk);
    // x = (inp - mean) · rstd, the normalised input;  g = dout · weight
    const float shift = -mean * rstd;
    float sums[2] = {};  // of g and of g · x
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!active || !walk.owns(p)) continue;
      float x[kVec], dy[kVec], weight[kVec];
      operands.row(walk, 0, p, x);
      operands.row(walk, 1, p, dy);
      if constexpr (kParts) {
        add_parts(a.more_douts, walk.at + p * walk.pack_step, dy);
        operands.keep(1, p, dy);
      }
      operands.vector(walk, 0, p, weight);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[i] = fmaf(x[i], rstd, shift);
        dweight[p][i] += dy[i] * x[i];
        dbias[p][i] += dy[i];
        const float g = dy[i] * weight[i];
        sums[0] += g;
        sums[1] += g * x[i];
      }
    }
    row_sums.add(sums);
    // dinp = rstd · (g - mean(g) - x · mean(g · x))
    const float offset = a.mean == nullptr ? 0.0f : -rstd * sums[0] * mean_factor;
    const float slope = -rstd * sums[1] * mean_factor;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!active || !walk.owns(p)) continue;
      float x[kVec], dy[kVec], other[kVec];
      operands.row(walk, 0, p, x);
      operands.row(walk, 1, p, dy);
      if constexpr (kParts && !decltype(operands)::kStaged) add_parts(a.more_douts, walk.at + p * walk.pack_step, dy);
      operands.vector(walk, 0, p, other);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[i] = fmaf(x[i], rstd, shift);
        x[i] = fmaf(dy[i] * other[i], rstd, fmaf(x[i], slope, offset));
      }
      if constexpr (kAdds) {
        operands.row(walk, 2, p, other);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[i] += other[i];
      }
      store_pack(a.dinp + walk.at + p * walk.pack_step, pack_floats<T>(x));
    }
  }
  copy_async_wait<0>();
  __syncthreads();                                    // the rows' memory now holds the columns
  float* columns = reinterpret_cast<float*>(memory);  // (2, C)
  // The block's groups add their sums one after the other.
  for (unsigned group = 0; group < blockDim.y; ++group) {
    if (threadIdx.y == group)
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const int c = walk.column(p) + i;
          if (c >= s.width) continue;
          columns[c] = dweight[p][i] + (group == 0 ? 0.0f : columns[c]);
          columns[s.width + c] = dbias[p][i] + (group == 0 ? 0.0f : columns[s.width + c]);
        }
    __syncthreads();
  }
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int i = thread; i < 2 * s.width; i += static_cast<int>(blockDim.x * blockDim.y))
    a.partial[int64_t{blockIdx.x} * 2 * s.width + i] = columns[i];
}

template <class T, int kVec>
__global__ void residual_add_kernel(T* out, const T* inp, const T* add, const T* bias, int64_t count, int64_t width,
                                    MoreParts<T> more_adds) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kVec;
  if (i >= count) return;
  const Pack<T, kVec> x = load_pack<kVec>(inp + i);
  float y[kVec];
  unpack(load_pack<kVec>(add + i), y);
  if (more_adds.count > 0) add_parts(more_adds, i, y);
  Pack<T, kVec> b, sum;
  if (bias != nullptr) b = load_pack<kVec>(bias + i % width);
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    float value = to_float(x.item[k]) + y[k];
    if (bias != nullptr) value += to_float(b.item[k]);
    sum.item[k] = from_float<T>(value);
  }
  store_pack(out + i, sum);
}

// Calls launch(kPacks, dim3(32 · W, groups)) for rows of `width` elements read `vec` at a time: `most` packs a thread
// where that many warps suffice.
template <int kVec, class Launch>
void choose_mapping(int64_t width, int64_t most, Launch launch) {
  const int64_t packs = (width + kVec - 1) / kVec;
  const auto warps_with = [&](int64_t per_lane) { return (packs + 32 * per_lane - 1) / (32 * per_lane); };
  const auto launch_with = [&](auto per_lane) {
    const auto warps = static_cast<unsigned>(warps_with(decltype(per_lane)::value));
    launch(per_lane, dim3(32 * warps, std::max(1U, kMaxGroups / warps)));
  };
  if (kVec > 1 && warps_with(3) <= kMaxWarps) {
    const int64_t per_lane = std::min(most, warps_with(1));
    if (per_lane == 1) return launch_with(std::integral_constant<int, 1>{});
    if (per_lane == 2) return launch_with(std::integral_constant<int, 2>{});
    return launch_with(std::integral_constant<int, 3>{});
  }
  TRI_REQUIRE(warps_with(8) <= kMaxWarps, "norm of rows of {} elements{}", width,
              kVec == 1 ? " that are no multiple of 16 bytes" : "");
  launch_with(std::integral_constant<int, 8>{});
}

// Blocks of `kernel` that fill the device, at most one a group of rows.
template <class Kernel>
unsigned persistent_blocks(Kernel kernel, dim3 block, size_t shared, int64_t rows) {
  if (shared > 40 * 1024)  // the rest of the 48 KiB that need no asking is for static arrays
    TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  int per_sm = 1;
  TRI_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, static_cast<int>(block.x * block.y), shared));
  const int64_t wanted = (rows + block.y - 1) / block.y;
  return static_cast<unsigned>(std::min<int64_t>(wanted, int64_t{std::max(per_sm, 1)} * num_multiprocessors()));
}

template <class T, int kVec>
void forward(const NormForward& n, cudaStream_t stream) {
  const Forward<T> args{
      pointer<T>(n.out),    pointer<T>(n.sum),  pointer<T>(n.inp),      pointer<T>(n.add),      pointer<T>(n.add_bias),
      pointer<T>(n.weight), pointer<T>(n.bias), pointer<float>(n.mean), pointer<float>(n.rstd), n.eps,
      more_parts<T>(n.add)};
  const Shape shape{n.inp[0], static_cast<int>(n.inp[1])};
  choose_mapping<kVec>(n.inp[1], 3, [&](auto packs, dim3 block) {
    const auto launch = [&](auto add) {
      constexpr int kPacks = decltype(packs)::value;
      constexpr Add kAdd = decltype(add)::value;
      const size_t shared = ForwardKernel<T, kVec, kPacks, kAdd>::Inputs::bytes(block);
      auto kernel = norm_forward_kernel<T, kVec, kPacks, kAdd>;
      kernel<<<persistent_blocks(kernel, block, shared, shape.rows), block, shared, stream>>>(args, shape);
    };
    if (n.add.empty()) return launch(std::integral_constant<Add, Add::kNothing>{});
    num_parts(n.add) == 1 ? launch(std::integral_constant<Add, Add::kWhole>{})
                          : launch(std::integral_constant<Add, Add::kParts>{});
  });
  TRI_CUDA_LAUNCH("norm_forward");
}

template <class T, int kVec>
void backward(const NormBackward& n, cudaStream_t stream) {
  const Shape shape{n.inp[0], static_cast<int>(n.inp[1])};
  // Short rows: fewer registers and more rows at once. Long rows: fewer warps at a barrier. Both as measured.
  const int64_t most = n.inp[1] <= 4 * 2 * 32 * kVec ? 2 : 3;
  choose_mapping<kVec>(n.inp[1], most, [&](auto packs, dim3 block) {
    const auto launch = [&](auto adds, auto parts) {
      constexpr int kPacks = decltype(packs)::value;
      constexpr bool kAdds = decltype(adds)::value;
      auto kernel = norm_backward_kernel<T, kVec, kPacks, kAdds, decltype(parts)::value>;
      const size_t columns = 2 * sizeof(float) * static_cast<size_t>(shape.width);
      const size_t shared = std::max(columns, BackwardKernel<T, kVec, kPacks, kAdds>::Inputs::bytes(block));
      const unsigned blocks = persistent_blocks(kernel, block, shared, shape.rows);
      auto* partial = static_cast<float*>(workspace(stream, Scratch::kColumnSums, columns * blocks));
      kernel<<<blocks, block, shared, stream>>>(
          {pointer<T>(n.dinp), pointer<T>(n.dresidual), pointer<T>(n.dout), pointer<T>(n.inp), pointer<T>(n.weight),
           pointer<float>(n.mean), pointer<float>(n.rstd), partial, more_parts<T>(n.dout)},
          shape);
      TRI_CUDA_LAUNCH("norm_backward");
      add_slabs<2>({{pointer<float>(n.dweight), pointer<float>(n.dbias)}}, partial, n.inp[1], static_cast<int>(blocks),
                   stream);
    };
    const auto launch_with = [&](auto adds) {
      num_parts(n.dout) == 1 ? launch(adds, std::false_type{}) : launch(adds, std::true_type{});
    };
    n.dresidual.empty() ? launch_with(std::false_type{}) : launch_with(std::true_type{});
  });
}

}  // namespace

void norm_forward(const NormForward& n, cudaStream_t stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned<T>(n.inp[1], {n.out, n.sum, n.inp, n.add, n.add_bias, n.weight, n.bias});
    packs ? forward<T, Pack<T>::kSize>(n, stream) : forward<T, 1>(n, stream);
  });
}

void norm_backward(const NormBackward& n, cudaStream_t stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned<T>(n.inp[1], {n.dinp, n.dresidual, n.dout, n.inp, n.weight});
    packs ? backward<T, Pack<T>::kSize>(n, stream) : backward<T, 1>(n, stream);
  });
}

void residual_add(const ResidualAdd& a, cudaStream_t stream) {
  const int64_t count = a.inp.numel();
  if (count == 0) return;
  dispatch(a.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const bool packs = aligned<T>(a.inp[1], {a.out, a.inp, a.add, a.add_bias});
    const int64_t threads = packs ? count / Pack<T>::kSize : count;
    auto kernel = packs ? residual_add_kernel<T, Pack<T>::kSize> : residual_add_kernel<T, 1>;
    kernel<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        pointer<T>(a.out), pointer<T>(a.inp), pointer<T>(a.add), pointer<T>(a.add_bias), count, a.inp[1],
        more_parts<T>(a.add));
    TRI_CUDA_LAUNCH("residual_add");
  });
}

}  // namespace tri::cuda
