// Token and position embeddings, forward and deterministic backward: formulas in kernels/embedding.h.
// Forward: one thread per sixteen bytes of a row if rows are aligned, otherwise per element; a few rows per block.
// Token gradients: rows are sorted by token (stable radix sort), and each block adds a tile of kTile rows, one run of
// equal tokens after the other, in order. Runs inside a tile are added to the table at once. The partial sums of longer
// runs go to scratch, and a second kernel adds them in order: there are no atomics, every call gives the same bits, and
// a frequent token costs no more than rare ones. Position gradients: one thread per sixteen bytes of the table adds its
// rows in ascending order.
// Bound: memory, R·C elements read and written.  Reference: kernels/cpu/embedding.cpp.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

constexpr std::integral_constant<int, 1> kElement{};
template <class T>
constexpr std::integral_constant<int, Pack<T>::kSize> kPackOf{};

// Blocks of (x, y) threads for rows of `packs` packs: x threads per row, y rows at a time.
struct RowGrid {
  dim3 grid, block;
  RowGrid(int64_t rows, int64_t packs) {
    block.x = static_cast<unsigned>(std::min<int64_t>((packs + 31) / 32 * 32, kThreads));
    block.y = kThreads / block.x;
    grid.x = static_cast<unsigned>((rows + block.y - 1) / block.y);
  }
};
__device__ int64_t thread_row() { return blockIdx.x * int64_t{blockDim.y} + threadIdx.y; }

template <class T, int kVec>
__global__ void embedding_kernel(T* out, const int32_t* tokens, const T* weight, int64_t rows, int width, int64_t local,
                                 int first_token, float scale) {
  const int64_t r = thread_row();
  if (r >= rows) return;
  const int64_t row = int64_t{tokens[r]} - first_token;
  const bool here = row >= 0 && row < local;
  for (int c = static_cast<int>(threadIdx.x) * kVec; c < width; c += static_cast<int>(blockDim.x) * kVec) {
    Pack<T, kVec> pack;
    if (here) {
      pack = load_pack<kVec>(weight + row * width + c);
      if (scale != 1.0f) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) pack.item[i] = from_float<T>(scale * to_float(pack.item[i]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) pack.item[i] = from_float<T>(0.0f);
    }
    store_pack(out + r * width + c, pack);
  }
}

// Writes the sort's input: the row's place in this rank's table, or `local` if it has none, and the row's number.
__global__ void number_rows(int32_t* places, int32_t* rows, const int32_t* tokens, int64_t count, int32_t local,
                            int32_t first_token) {
  const int64_t i = thread_index();
  if (i >= count) return;
  const int32_t place = tokens[i] - first_token;
  places[i] = place >= 0 && place < local ? place : local;
  rows[i] = static_cast<int32_t>(i);
}

constexpr int kTile = 32;
constexpr int kTileThreads = 128;

// The sorted rows, and the destination of the partial sums of runs that cross tiles.
struct Runs {
  const int32_t *places, *rows;  // (count), sorted by place in the table
  int64_t count;
  float* parts;  // (tiles, 2, C): sums of the tile's first run, if it began earlier, and of its last, if it continues
  int width;
  int32_t local;  // rows of the table; as a place: none
  float scale;    // of what is added to the table

  __device__ bool same(int64_t i, int64_t j) const { return j >= 0 && j < count && places[i] == places[j]; }
};

// Block (i, j) processes tile i, columns of slice j.
template <class T, int kVec>
__global__ void __launch_bounds__(kTileThreads) add_tiles(float* dweight, const T* dout, Runs runs) {
  __shared__ int32_t places[kTile], rows[kTile];
  const int64_t begin = int64_t{blockIdx.x} * kTile;
  const int size = static_cast<int>(runs.count - begin < kTile ? runs.count - begin : kTile);
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kTileThreads)
    places[i] = runs.places[begin + i], rows[i] = runs.rows[begin + i];
  __syncthreads();
  const bool from_before = runs.same(begin, begin - 1), goes_on = runs.same(begin + size - 1, begin + size);
  const int c = static_cast<int>(blockIdx.y * kTileThreads + threadIdx.x) * kVec;
  if (c >= runs.width) return;

  float sum[kVec] = {};
  bool begun = !from_before;  // whether the run began in this tile
  constexpr int kAhead = 4;   // loads in flight: rows, and the rows of the table that they complete
  for (int start = 0; start < size; start += kAhead) {
    Pack<T, kVec> pack[kAhead];
    float table[kAhead][kVec];
    bool last[kAhead], whole[kAhead];  // last row of its run in this tile; the run ends here
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = start + k;
      last[k] = i < size && (i + 1 == size || places[i + 1] != places[i]);
      whole[k] = i + 1 < size || !goes_on;
      if (i < size) pack[k] = load_pack<kVec>(dout + int64_t{rows[i]} * runs.width + c);
      if (last[k] && places[i] < runs.local)
#pragma unroll
        for (int v = 0; v < kVec; ++v) table[k][v] = dweight[int64_t{places[i]} * runs.width + c + v];
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = start + k;
      if (i >= size) continue;
      float x[kVec];
      unpack(pack[k], x);
#pragma unroll
      for (int v = 0; v < kVec; ++v) sum[v] += x[v];
      if (!last[k]) continue;
      const bool all = begun && whole[k];
      if (places[i] < runs.local) {
        float* to = all ? dweight + int64_t{places[i]} * runs.width + c
                        : runs.parts + (int64_t{blockIdx.x} * 2 + (begun ? 1 : 0)) * runs.width + c;
#pragma unroll
        for (int v = 0; v < kVec; ++v) to[v] = all ? fmaf(runs.scale, sum[v], table[k][v]) : sum[v];
      }
#pragma unroll
      for (int v = 0; v < kVec; ++v) sum[v] = 0;
      begun = true;
    }
  }
}

// Block (i, j): the run that begins in tile i and continues, if there is one; columns of slice j.
__global__ void __launch_bounds__(kTileThreads) add_parts(float* dweight, Runs runs) {
  const int64_t tile = blockIdx.x, last = tile * kTile + kTile - 1;
  if (!runs.same(last, last + 1)) return;  // the run ends here, or the tile is incomplete
  if (runs.same(tile * kTile, last) && runs.same(tile * kTile, tile * kTile - 1)) return;  // the run began earlier
  const int64_t row = runs.places[last];
  const int c = static_cast<int>(blockIdx.y * kTileThreads + threadIdx.x);
  if (row == runs.local || c >= runs.width) return;
  float sum = runs.parts[(tile * 2 + 1) * runs.width + c];
#pragma unroll 4
  for (int64_t next = tile + 1; next * kTile < runs.count && runs.places[next * kTile] == row; ++next)
    sum += runs.parts[next * 2 * runs.width + c];
  float& to = dweight[row * runs.width + c];
  to = fmaf(runs.scale, sum, to);
}

template <class T, int kVec>
__global__ void position_kernel(T* inout, const T* weight, int64_t rows, int width, int64_t seq_len,
                                int64_t first_row) {
  const int64_t r = thread_row();
  if (r >= rows) return;
  const int64_t position = (first_row + r) % seq_len;
  for (int c = static_cast<int>(threadIdx.x) * kVec; c < width; c += static_cast<int>(blockDim.x) * kVec) {
    Pack<T, kVec> sum = load_pack<kVec>(inout + r * width + c);
    const Pack<T, kVec> add = load_pack<kVec>(weight + position * width + c);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum.item[i] = from_float<T>(to_float(sum.item[i]) + to_float(add.item[i]));
    store_pack(inout + r * width + c, sum);
  }
}

template <class T, int kVec>
__global__ void position_gradient_kernel(float* dweight, const T* dout, int64_t rows, int width, int64_t seq_len,
                                         int64_t first_row) {
  const int64_t position = thread_row();
  if (position >= seq_len) return;
  const int64_t begin = (position + seq_len - first_row % seq_len) % seq_len;
  for (int c = static_cast<int>(threadIdx.x) * kVec; c < width; c += static_cast<int>(blockDim.x) * kVec) {
    float sum[kVec] = {};
#pragma unroll 8
    for (int64_t r = begin; r < rows; r += seq_len) {
      const Pack<T, kVec> pack = load_pack<kVec>(dout + r * width + c);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] += to_float(pack.item[i]);
    }
    float* to = dweight + position * width + c;
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] += sum[i];
  }
}

__global__ void row_positions_kernel(int32_t* out, const int32_t* starts, int64_t rows, int seq_len, int key_len,
                                     int2 chunk_start) {
  const int64_t r = thread_index();
  if (r >= rows) return;
  const int64_t b = r / seq_len;
  int position = static_cast<int>(r - b * seq_len);
  if (seq_len < key_len) position += position < seq_len / 2 ? chunk_start.x : chunk_start.y - seq_len / 2;
  out[r] = position - starts[b * key_len + position];
}

}  // namespace

void embedding_forward(const EmbeddingForward& e, CudaStream& stream) {
  if (e.out.numel() == 0) return;
  dispatch(e.out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      const RowGrid shape(e.out[0], e.out[1] / kVec);
      embedding_kernel<T, kVec><<<shape.grid, shape.block, 0, stream>>>(
          pointer<T>(e.out), pointer<int32_t>(e.tokens), pointer<T>(e.weight), e.out[0], static_cast<int>(e.out[1]),
          e.weight[0], e.first_token, e.scale);
    };
    aligned<T>(e.out[1], {e.out, e.weight}) ? launch(kPackOf<T>) : launch(kElement);
  });
  TRI_CUDA_LAUNCH("embedding_forward");
}

void embedding_backward(const EmbeddingBackward& e, CudaStream& stream) {
  const int64_t count = e.dout[0], width = e.dout[1];
  if (e.dout.numel() == 0) return;
  // Scratch: input and output of the sort, partial sums, the sort's own memory. Few bits per place mean fewer passes.
  const auto local = static_cast<int32_t>(e.dweight[0]);
  const int bits = std::bit_width(static_cast<uint32_t>(local)), items = static_cast<int>(count);
  size_t sort_bytes = 0;
  int32_t* none = nullptr;
  TRI_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, none, none, none, none, items, 0, bits, stream));
  const auto tiles = static_cast<unsigned>((count + kTile - 1) / kTile);
  const auto padded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const size_t list = padded(static_cast<size_t>(count) * sizeof(int32_t));
  const size_t parts = padded(size_t{tiles} * 2 * static_cast<size_t>(width) * sizeof(float));
  char* scratch = static_cast<char*>(workspace(stream, Scratch::kSort, 4 * list + parts + sort_bytes));
  const auto list_at = [&](size_t i) { return reinterpret_cast<int32_t*>(scratch + i * list); };
  int32_t *places = list_at(0), *rows = list_at(1), *sorted_places = list_at(2), *sorted_rows = list_at(3);
  number_rows<<<blocks_for(count), kThreads, 0, stream>>>(places, rows, pointer<int32_t>(e.tokens), count, local,
                                                          e.first_token);
  TRI_CUDA(cub::DeviceRadixSort::SortPairs(scratch + 4 * list + parts, sort_bytes, places, sorted_places, rows,
                                           sorted_rows, items, 0, bits, stream));
  const Runs runs{sorted_places,           sorted_rows, count,  reinterpret_cast<float*>(scratch + 4 * list),
                  static_cast<int>(width), local,       e.scale};
  const auto columns = [&](int vec) { return static_cast<unsigned>((width / vec + kTileThreads - 1) / kTileThreads); };
  dispatch(e.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      add_tiles<T, kVec><<<dim3(tiles, columns(kVec)), kTileThreads, 0, stream>>>(pointer<float>(e.dweight),
                                                                                  pointer<T>(e.dout), runs);
    };
    aligned<T>(width, {e.dout}) ? launch(kPackOf<T>) : launch(kElement);
  });
  add_parts<<<dim3(tiles, columns(1)), kTileThreads, 0, stream>>>(pointer<float>(e.dweight), runs);
  TRI_CUDA_LAUNCH("embedding_backward");
}

void position_forward(const PositionForward& p, CudaStream& stream) {
  if (p.inout.numel() == 0) return;
  dispatch(p.inout.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      const RowGrid shape(p.inout[0], p.inout[1] / kVec);
      position_kernel<T, kVec><<<shape.grid, shape.block, 0, stream>>>(pointer<T>(p.inout), pointer<T>(p.weight),
                                                                       p.inout[0], static_cast<int>(p.inout[1]),
                                                                       p.weight[0], p.first_row);
    };
    aligned<T>(p.inout[1], {p.inout, p.weight}) ? launch(kPackOf<T>) : launch(kElement);
  });
  TRI_CUDA_LAUNCH("position_forward");
}

void position_backward(const PositionBackward& p, CudaStream& stream) {
  if (p.dout.numel() == 0) return;
  dispatch(p.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      const RowGrid shape(p.dweight[0], p.dout[1] / kVec);
      position_gradient_kernel<T, kVec>
          <<<shape.grid, shape.block, 0, stream>>>(pointer<float>(p.dweight), pointer<T>(p.dout), p.dout[0],
                                                   static_cast<int>(p.dout[1]), p.dweight[0], p.first_row);
    };
    aligned<T>(p.dout[1], {p.dout, p.dweight}) ? launch(kPackOf<T>) : launch(kElement);
  });
  TRI_CUDA_LAUNCH("position_backward");
}

void row_positions(const RowPositions& p, CudaStream& stream) {
  const int64_t rows = p.out[0];
  if (rows == 0) return;
  row_positions_kernel<<<blocks_for(rows), kThreads, 0, stream>>>(
      pointer<int32_t>(p.out), pointer<int32_t>(p.document_starts), rows, static_cast<int>(rows / p.document_starts[0]),
      static_cast<int>(p.document_starts[1]), make_int2(p.chunk_start[0], p.chunk_start[1]));
  TRI_CUDA_LAUNCH("row_positions");
}

}  // namespace tri::cuda
