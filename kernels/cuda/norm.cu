// Residual addition + LayerNorm/RMSNorm, forward and backward: formulas in kernels/norm.h.
//   inp, add, out, dout, ... (R, C) bf16|f32    weight, bias (C)    mean, rstd (R) f32
// Mapping: W = 1 to 16 warps a row, chosen so that a lane holds up to three 16-byte packs of it in registers: global
// memory is read and written once. Blocks are persistent: while a group works on a row, the next one's operands are on
// their way to shared memory (cp.async, each thread its own packs, so that no barrier is needed). Backward: a thread
// keeps its columns' parameter gradients in registers over all its rows; a second kernel adds the blocks' sums in a
// fixed order.
// Limits: C up to 32768 in bf16, 16384 in fp32; up to 4096 where rows are no multiple of 16 bytes.
// Bound: memory; R·C elements 2 times forward (4 with a residual), 4 backward (3 without dresidual).
// Mirror: kernels/cpu/norm.cpp.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxWarps = 16;

// A block is (32 · W, groups) threads; each of its groups works on one row.
struct Shape {
  int64_t rows;
  int width;  // C
};

// Sum over the W warps of this thread's group, in every thread; all threads of the block take part.
__device__ __forceinline__ float row_sum(float value, float (*shared)[kMaxWarps]) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return value;
  __syncthreads();  // earlier readers of `shared` are done
  if (threadIdx.x % 32 == 0) shared[threadIdx.y][threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < warps; ++warp) sum += shared[threadIdx.y][warp];
  return sum;
}

// A thread's packs of kArrays operands of a row, in flight to shared memory. kStages buffers of them; with kStages 0
// (operands too large) rows are read when they are needed.
template <class T, int kVec, int kPacks, int kArrays, int kStages>
class RowPipe {
 public:
  static constexpr size_t bytes(int threads) {
    return sizeof(Pack<T, kVec>) * kStages * kArrays * kPacks * static_cast<size_t>(threads);
  }

  __device__ RowPipe(void* shared, const T* const (&arrays)[kArrays], Shape shape)
      : packs_(static_cast<Pack<T, kVec>*>(shared)), shape_(shape) {
    for (int a = 0; a < kArrays; ++a) arrays_[a] = arrays[a];
  }

  // Starts the copies of `row`; rows beyond the end are none.
  __device__ void fetch(int64_t row, int stage) {
    if constexpr (kStages > 0) {
      if (row < shape_.rows)
#pragma unroll
        for (int a = 0; a < kArrays; ++a)
#pragma unroll
          for (int p = 0; p < kPacks; ++p)
            if (arrays_[a] != nullptr && column(p) < shape_.width)
              copy_async16(shared_address(&packs_[slot(stage, a, p)]), arrays_[a] + row * shape_.width + column(p),
                           true);
      copy_async_commit();
    }
  }
  // Waits for the oldest but `later` fetches.
  template <int kLater>
  __device__ void wait() {
    if constexpr (kStages > 0) copy_async_wait<kLater>();
  }
  __device__ Pack<T, kVec> get(int64_t row, int stage, int array, int p) const {
    if constexpr (kStages > 0) return packs_[slot(stage, array, p)];
    return load_pack<kVec>(arrays_[array] + row * shape_.width + column(p));
  }
  __device__ int column(int p) const {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(p) * blockDim.x) * kVec;
  }

 private:
  __device__ int slot(int stage, int array, int p) const {
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    return ((stage * kArrays + array) * kPacks + p) * threads +
           static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  }

  Pack<T, kVec>* packs_;
  const T* arrays_[kArrays];
  Shape shape_;
};

template <class T>
struct Forward {
  T *out, *sum;
  const T *inp, *add, *add_bias, *weight, *bias;
  float *mean, *rstd;  // mean: LayerNorm only
  float eps;
};

template <class T, int kVec, int kPacks, int kStages>
__global__ void __launch_bounds__(512) norm_forward_kernel(Forward<T> a, Shape s) {
  constexpr int kDepth = kStages > 0 ? kStages : 1;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float reduce[kThreads / 32][kMaxWarps];
  RowPipe<T, kVec, kPacks, 2, kStages> pipe(memory, {a.inp, a.add}, s);
  const float width = static_cast<float>(s.width);
  const int64_t stride = int64_t{gridDim.x} * blockDim.y, start = blockIdx.x * int64_t{blockDim.y};
  int stage = 0;
  for (int ahead = 0; ahead + 1 < kDepth; ++ahead) pipe.fetch(start + threadIdx.y + ahead * stride, ahead);
  for (int64_t base = start; base < s.rows;
       base += stride, stage = (stage + 1) % kDepth) {  // all groups alike: they share barriers
    const int64_t row = base + threadIdx.y, at = row * s.width;
    const bool active = row < s.rows;
    pipe.fetch(row + (kDepth - 1) * stride, (stage + kDepth - 1) % kDepth);
    pipe.template wait<kDepth - 1>();
    float x[kPacks][kVec], total = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = pipe.column(p);
      const bool here = active && c < s.width;
      Pack<T, kVec> raw;
      if (here) raw = pipe.get(row, stage, 0, p);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[p][i] = here ? to_float(raw.item[i]) : 0.0f;
      if (here && a.add != nullptr) {
        const Pack<T, kVec> add = pipe.get(row, stage, 1, p);
        Pack<T, kVec> bias;
        if (a.add_bias != nullptr) bias = load_pack<kVec>(a.add_bias + c);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          float sum = x[p][i] + to_float(add.item[i]);
          if (a.add_bias != nullptr) sum += to_float(bias.item[i]);
          raw.item[i] = from_float<T>(sum);
          x[p][i] = to_float(raw.item[i]);  // what backward will see
        }
        store_pack(a.sum + at + c, raw);
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) total += x[p][i];
    }
    const float mean = a.mean == nullptr ? 0.0f : row_sum(total, reduce) / width;
    float square = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (pipe.column(p) < s.width)
#pragma unroll
        for (int i = 0; i < kVec; ++i) square += (x[p][i] - mean) * (x[p][i] - mean);
    const float rstd = rsqrtf(row_sum(square, reduce) / width + a.eps);
    if (!active) continue;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = pipe.column(p);
      if (c >= s.width) continue;
      const Pack<T, kVec> weight = load_pack<kVec>(a.weight + c);
      Pack<T, kVec> bias, out;
      if (a.bias != nullptr) bias = load_pack<kVec>(a.bias + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        float y = (x[p][i] - mean) * rstd * to_float(weight.item[i]);
        if (a.bias != nullptr) y += to_float(bias.item[i]);
        out.item[i] = from_float<T>(y);
      }
      store_pack(a.out + at + c, out);
    }
    if (threadIdx.x != 0) continue;
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <class T>
struct Backward {
  T* dinp;
  const T *dresidual, *dout, *inp, *weight;
  const float *mean, *rstd;
  float* partial;  // (blocks, 2, C): sums of this block's rows for dweight and dbias
};

template <class T, int kVec, int kPacks, int kStages>
__global__ void __launch_bounds__(512) norm_backward_kernel(Backward<T> a, Shape s) {
  constexpr int kDepth = kStages > 0 ? kStages : 1;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float reduce[kThreads / 32][kMaxWarps];
  RowPipe<T, kVec, kPacks, 3, kStages> pipe(memory, {a.inp, a.dout, a.dresidual}, s);
  const float width = static_cast<float>(s.width);
  const int64_t stride = int64_t{gridDim.x} * blockDim.y, start = blockIdx.x * int64_t{blockDim.y};
  float dweight[kPacks][kVec] = {}, dbias[kPacks][kVec] = {};
  int stage = 0;
  for (int ahead = 0; ahead + 1 < kDepth; ++ahead) pipe.fetch(start + threadIdx.y + ahead * stride, ahead);
  for (int64_t base = start; base < s.rows;
       base += stride, stage = (stage + 1) % kDepth) {  // all groups alike: they share barriers
    const int64_t row = base + threadIdx.y, at = row * s.width;
    const bool active = row < s.rows;
    const float mean = a.mean == nullptr || !active ? 0.0f : a.mean[row], rstd = active ? a.rstd[row] : 0.0f;
    pipe.fetch(row + (kDepth - 1) * stride, (stage + kDepth - 1) % kDepth);
    pipe.template wait<kDepth - 1>();
    Pack<T, kVec> inp[kPacks], dout[kPacks];
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = pipe.column(p);
      if (!active || c >= s.width) continue;
      inp[p] = pipe.get(row, stage, 0, p);
      dout[p] = pipe.get(row, stage, 1, p);
      const Pack<T, kVec> weight = load_pack<kVec>(a.weight + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float dy = to_float(dout[p].item[i]), x = (to_float(inp[p].item[i]) - mean) * rstd;
        dweight[p][i] += dy * x;
        dbias[p][i] += dy;
        const float g = dy * to_float(weight.item[i]);
        sum_g += g;
        sum_gx += g * x;
      }
    }
    const float mean_gx = row_sum(sum_gx, reduce) / width;
    const float mean_g = a.mean == nullptr ? 0.0f : row_sum(sum_g, reduce) / width;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = pipe.column(p);
      if (!active || c >= s.width) continue;
      const Pack<T, kVec> weight = load_pack<kVec>(a.weight + c);
      Pack<T, kVec> dresidual, dinp;
      if (a.dresidual != nullptr) dresidual = pipe.get(row, stage, 2, p);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float x = (to_float(inp[p].item[i]) - mean) * rstd;
        float dx = rstd * (to_float(dout[p].item[i]) * to_float(weight.item[i]) - mean_g - x * mean_gx);
        if (a.dresidual != nullptr) dx += to_float(dresidual.item[i]);
        dinp.item[i] = from_float<T>(dx);
      }
      store_pack(a.dinp + at + c, dinp);
    }
  }
  pipe.template wait<0>();
  __syncthreads();                                    // the rows' memory now holds the columns
  float* columns = reinterpret_cast<float*>(memory);  // (2, C)
  // The block's groups add their sums one after the other.
  for (unsigned group = 0; group < blockDim.y; ++group) {
    if (threadIdx.y == group)
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const int c = pipe.column(p) + i;
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
__global__ void residual_add_kernel(T* out, const T* inp, const T* add, const T* bias, int64_t count, int64_t width) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kVec;
  if (i >= count) return;
  const Pack<T, kVec> x = load_pack<kVec>(inp + i), y = load_pack<kVec>(add + i);
  Pack<T, kVec> b, sum;
  if (bias != nullptr) b = load_pack<kVec>(bias + i % width);
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    float value = to_float(x.item[k]) + to_float(y.item[k]);
    if (bias != nullptr) value += to_float(b.item[k]);
    sum.item[k] = from_float<T>(value);
  }
  store_pack(out + i, sum);
}

// Calls launch(kPacks, dim3(32 · W, groups)) for rows of `width` elements read `vec` at a time.
template <int kVec, class Launch>
void choose_mapping(int64_t width, Launch launch) {
  const int64_t packs = (width + kVec - 1) / kVec;
  int warps = 1;
  while (warps < kMaxWarps && packs > int64_t{32} * warps * (kVec == 1 ? 8 : 3)) warps *= 2;
  const int64_t per_lane = (packs + 32 * warps - 1) / (32 * warps);
  const dim3 block(static_cast<unsigned>(32 * warps), static_cast<unsigned>(warps < 8 ? 8 / warps : 1));
  if constexpr (kVec == 1) {
    TRI_REQUIRE(per_lane <= 8, "norm of rows of {} elements that are no multiple of 16 bytes", width);
    launch(std::integral_constant<int, 8>{}, block);
  } else {
    TRI_REQUIRE(per_lane <= 8, "norm of rows of {} elements", width);
    if (per_lane == 1) return launch(std::integral_constant<int, 1>{}, block);
    if (per_lane == 2) return launch(std::integral_constant<int, 2>{}, block);
    if (per_lane == 3) return launch(std::integral_constant<int, 3>{}, block);
    launch(std::integral_constant<int, 8>{}, block);
  }
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

// Three stages where they fit on a multiprocessor; single elements cannot be copied asynchronously.
constexpr size_t kMostPipeBytes = 220 * 1024;

template <class T, int kVec>
void forward(const NormForward& n, cudaStream_t stream) {
  const Forward<T> args{
      pointer<T>(n.out),    pointer<T>(n.sum),  pointer<T>(n.inp),      pointer<T>(n.add),      pointer<T>(n.add_bias),
      pointer<T>(n.weight), pointer<T>(n.bias), pointer<float>(n.mean), pointer<float>(n.rstd), n.eps};
  const Shape shape{n.inp[0], static_cast<int>(n.inp[1])};
  choose_mapping<kVec>(n.inp[1], [&](auto packs, dim3 block) {
    constexpr int kPacks = decltype(packs)::value, kStages = kVec == 1 || kPacks > 3 ? 0 : 3;
    auto kernel = norm_forward_kernel<T, kVec, kPacks, kStages>;
    const size_t shared = RowPipe<T, kVec, kPacks, 2, kStages>::bytes(static_cast<int>(block.x * block.y));
    static_assert(RowPipe<T, kVec, kPacks, 2, kStages>::bytes(512) <= kMostPipeBytes);
    kernel<<<persistent_blocks(kernel, block, shared, shape.rows), block, shared, stream>>>(args, shape);
  });
  TRI_CUDA_LAUNCH("norm_forward");
}

template <class T, int kVec>
void backward(const NormBackward& n, cudaStream_t stream) {
  const Shape shape{n.inp[0], static_cast<int>(n.inp[1])};
  choose_mapping<kVec>(n.inp[1], [&](auto packs, dim3 block) {
    constexpr int kPacks = decltype(packs)::value, kStages = kVec == 1 || kPacks > 3 ? 0 : 3;
    auto kernel = norm_backward_kernel<T, kVec, kPacks, kStages>;
    static_assert(RowPipe<T, kVec, kPacks, 3, kStages>::bytes(512) <= kMostPipeBytes);
    const size_t columns = 2 * sizeof(float) * static_cast<size_t>(shape.width);
    const size_t shared =
        std::max(columns, RowPipe<T, kVec, kPacks, 3, kStages>::bytes(static_cast<int>(block.x * block.y)));
    const unsigned blocks = persistent_blocks(kernel, block, shared, shape.rows);
    auto* partial = static_cast<float*>(workspace(stream, Scratch::kColumnSums, columns * blocks));
    kernel<<<blocks, block, shared, stream>>>(
        {pointer<T>(n.dinp), pointer<T>(n.dresidual), pointer<T>(n.dout), pointer<T>(n.inp), pointer<T>(n.weight),
         pointer<float>(n.mean), pointer<float>(n.rstd), partial},
        shape);
    TRI_CUDA_LAUNCH("norm_backward");
    add_slabs<2>({{pointer<float>(n.dweight), pointer<float>(n.dbias)}}, partial, n.inp[1], static_cast<int>(blocks),
                 stream);
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
        pointer<T>(a.out), pointer<T>(a.inp), pointer<T>(a.add), pointer<T>(a.add_bias), count, a.inp[1]);
    TRI_CUDA_LAUNCH("residual_add");
  });
}

}  // namespace tri::cuda
