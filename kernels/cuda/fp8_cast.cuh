// Conversion of numbers to FP8 on a GPU with its statistics (amax, counts: kernels/fp8.h), and the two mappings of
// casting kernels: flat runs for one orientation, tiles for both. A template parameter produces the numbers, so that a
// kernel can cast what it has just computed.
#pragma once

#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/fp8.h"

namespace tri::cuda {

constexpr int kRun = 8;     // elements of a row that a thread processes at once
constexpr int kQuad = 4;    // rows whose runs it takes together, to transpose them
constexpr int kTile = 128;  // side of a tile that a block transposes

// The statistics of a thread.
struct Fp8Found {
  uint32_t amax = 0;                     // bits of the largest size
  uint32_t saturated = 0;                // finite numbers beyond the range
  uint32_t numbers = 0, halves = 0;      // nonzero numbers: plain, and of bf16 in units of 2^15
  uint32_t quantized = 0, quarters = 0;  // nonzero FP8 numbers: plain, and in units of 2^7
  __device__ uint32_t underflowed() const { return numbers + halves / 32768 - quantized - quarters / 128; }
};

// The FP8 arguments of casting kernels. amax and counts may be null.
struct Fp8Target {
  const float* scale;
  float* amax;
  int64_t* counts;
  int64_t elements;               // of the whole tensor
  const int32_t* used = nullptr;  // rows that are cast; null: all
  int64_t columns = 0;            // of the tensor, with `used`

  __device__ __forceinline__ int64_t used_rows(int64_t rows) const {
    return used == nullptr ? rows : min(rows, static_cast<int64_t>(*used));
  }
  __device__ __forceinline__ int64_t used_elements() const {
    return used == nullptr ? elements : min(elements, *used * columns);
  }
};

template <__nv_fp8_interpretation_t kFormat>
constexpr float kFp8Limit = kFormat == __NV_E4M3 ? 448.0f : 57344.0f;

__device__ __forceinline__ uint32_t size_of(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

// Converts any single number. x · 0 is NaN if x is not finite, and otherwise zero with a sign that does not change the
// product.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint8_t encode_one(float x, float scale, Fp8Found& found) {
  const float scaled = fmaf(x, 0.0f, x * scale);
  const uint8_t code = scaled != scaled ? 0x7F : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, kFormat);
  found.amax = max(found.amax, size_of(x));
  found.saturated += fabsf(scaled) > kFp8Limit<kFormat>;
  found.numbers += x != 0.0f;
  found.quantized += (code & 0x7F) != 0;
  return code;
}

// Converts eight numbers at once: one instruction converts two, and sizes and zeros are tested several to a word. If
// one saturates or is not finite, converts each separately.
template <__nv_fp8_interpretation_t kFormat, class T>
__device__ __forceinline__ uint2 encode_run(const Pack<T, kRun>& from, float scale, Fp8Found& found) {
  float x[kRun];
  unpack(from, x);
  uint32_t most = 0, numbers = 0;
  if constexpr (sizeof(T) == 2) {
    uint32_t words[kRun / 2], pair = 0;
    memcpy(words, &from, sizeof words);
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      const uint32_t sizes = words[i] & 0x7FFF7FFFu;
      pair = __vmaxu2(pair, sizes);
      numbers = __dp2a_lo((sizes + 0x7FFF7FFFu) & 0x80008000u, 0x0101u, numbers);
    }
    most = max(pair & 0xFFFF0000u, pair << 16);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      most = max(most, size_of(x[i]));
      numbers += x[i] != 0.0f;
    }
  }
  union {
    uint2 words;
    uint16_t pairs[kRun / 2];
    uint8_t quantized[kRun];
  } out;
  if (!(__uint_as_float(most) * scale <= kFp8Limit<kFormat>)) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) out.quantized[i] = encode_one<kFormat>(x[i], scale, found);
    return out.words;
  }
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i)
    out.pairs[i] =
        __nv_cvt_float2_to_fp8x2(make_float2(x[2 * i] * scale, x[2 * i + 1] * scale), __NV_SATFINITE, kFormat);
  found.amax = max(found.amax, most);
  (sizeof(T) == 2 ? found.halves : found.numbers) += numbers;
  const auto marks = [](uint32_t word) { return ((word & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) & 0x80808080u; };
  found.quarters = __dp4a(marks(out.words.x), 0x01010101u, found.quarters);
  found.quarters = __dp4a(marks(out.words.y), 0x01010101u, found.quarters);
  return out.words;
}

// Runs that a thread may process before the packed counts of Fp8Found overflow.
constexpr int64_t kMostRuns = 1 << 14;

// Shared memory of publish().
template <int kMostWarps>
constexpr size_t kPublishedBytes = 3 * kMostWarps * sizeof(uint32_t);

// Publishes the statistics of all threads of a block of `warps`, at most kMostWarps. They are integers, so the order
// does not matter: a nonnegative float is ordered as its bits. One block also counts the elements.
template <int kMostWarps>
__device__ inline void publish(const Fp8Found& found, const Fp8Target& target, bool counts_elements, int thread,
                               int warps) {
  __shared__ uint32_t of_warp[3][kMostWarps];
  const int warp = thread / 32;
  const uint32_t values[3] = {__reduce_max_sync(0xFFFFFFFFu, found.amax),
                              __reduce_add_sync(0xFFFFFFFFu, found.saturated),
                              __reduce_add_sync(0xFFFFFFFFu, found.underflowed())};
  if (thread % 32 == 0)
    for (int k = 0; k < 3; ++k) of_warp[k][warp] = values[k];
  __syncthreads();
  if (thread >= 3) return;
  const int k = thread;
  uint32_t total = 0;
  for (int w = 0; w < warps; ++w) total = k == 0 ? max(total, of_warp[k][w]) : total + of_warp[k][w];
  auto* counts = reinterpret_cast<unsigned long long*>(target.counts);
  if (k == 0 && target.amax != nullptr) atomicMax(reinterpret_cast<unsigned*>(target.amax), total);
  if (k > 0 && counts != nullptr && total != 0)
    atomicAdd(counts + static_cast<int>(k == 1 ? Fp8Count::kSaturated : Fp8Count::kUnderflowed),
              static_cast<unsigned long long>(total));
  if (k == 0 && counts != nullptr && counts_elements)
    atomicAdd(counts + static_cast<int>(Fp8Count::kElements), static_cast<unsigned long long>(target.used_elements()));
}
// For a block of kThreads.
__device__ inline void publish(const Fp8Found& found, const Fp8Target& target, bool counts_elements) {
  publish<kThreads / 32>(found, target, counts_elements, static_cast<int>(threadIdx.x), kThreads / 32);
}

// A source produces numbers: at<n>(r, c) returns those of row r from column c on, n is kRun or 1. kFlat: at(0, i) also
// returns the i-th of all. kParts: rows have so many equal parts, and the numbers at the same place of all parts depend
// on the same operands; parts(r, c, numbers) produces a run of each, c a column of the first. A source that reads:
template <class T>
struct ReadRows {
  using Type = T;
  static constexpr bool kFlat = true;
  static constexpr int kParts = 1;
  const T* inp;
  int64_t columns;
  template <int kElements>
  __device__ Pack<T, kElements> at(int64_t r, int64_t c) const {
    return load_pack<kElements>(inp + r * columns + c);
  }
};

// One orientation: blocks stride over the runs of out.
template <class Source, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads)
    cast_runs_kernel(uint8_t* out, Source source, Fp8Target target, uint32_t runs, uint32_t runs_a_row) {
  Fp8Found found;
  const float scale = *target.scale;
  const uint32_t stride = gridDim.x * kThreads;
  if (target.used != nullptr) runs = min(runs, static_cast<uint32_t>(target.used_elements() / kRun));
#pragma unroll 2
  for (uint32_t run = blockIdx.x * kThreads + threadIdx.x; run < runs; run += stride) {
    const uint32_t r = Source::kFlat ? 0 : run / runs_a_row;
    const auto from = source.template at<kRun>(r, int64_t{run - r * runs_a_row} * kRun);
    *reinterpret_cast<uint2*>(out + int64_t{run} * kRun) = encode_run<kFormat>(from, scale, found);
  }
  publish(found, target, blockIdx.x == 0);
}

// For rows that do not divide into runs.
template <class Source, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads)
    cast_elements_kernel(uint8_t* out, uint8_t* out_t, Source source, Fp8Target target, int64_t rows, int64_t columns) {
  Fp8Found found;
  const float scale = *target.scale;
  for (int64_t i = thread_index(); i < target.used_rows(rows) * columns; i += int64_t{gridDim.x} * kThreads) {
    const int64_t r = i / columns, c = i % columns;
    const uint8_t code = encode_one<kFormat>(to_float(source.template at<1>(r, c).item[0]), scale, found);
    if (out != nullptr) out[i] = code;
    if (out_t != nullptr) out_t[c * rows + r] = code;
  }
  publish(found, target, blockIdx.x == 0);
}

// A tile of bytes to be transposed: words of a quad of rows, [column][quad]. A column's quads are exchanged by groups
// of four, so that threads of neighbouring runs write to different banks and sixteen rows are read at once.
struct TransposeTile {
  uint32_t word[kTile][kTile / kQuad];

  __device__ static int place(int column, int quad) { return quad ^ ((column / kRun & 7) * 4); }
  // Columns [column, column + 4) of a quad's four rows.
  __device__ void put(int column, int quad, const uint32_t (&rows)[kQuad]) {
    const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362);
    const uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
    word[column][place(column, quad)] = __byte_perm(low01, low23, 0x5410);
    word[column + 1][place(column, quad)] = __byte_perm(low01, low23, 0x7632);
    word[column + 2][place(column, quad)] = __byte_perm(high01, high23, 0x5410);
    word[column + 3][place(column, quad)] = __byte_perm(high01, high23, 0x7632);
  }
  // Writes the rows below `end` to out_t (columns, rows); all threads of a block call it, after a barrier. `rows` and
  // `end` are multiples of sixteen.
  __device__ void store(uint8_t* out_t, int64_t first_row, int64_t first_column, int64_t rows, int64_t columns,
                        int64_t end) const {
    constexpr int kGroups = kTile / 16;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kGroups; i += kThreads) {
      const int c = i / kGroups, group = i % kGroups;
      if (first_column + c >= columns || first_row + group * 16 >= end) continue;
      *reinterpret_cast<uint4*>(out_t + (first_column + c) * rows + first_row + group * 16) =
          *reinterpret_cast<const uint4*>(&word[c][place(c, group * 4)]);
    }
  }
};

// The runs of the source's parts at place c of row r.
template <class Source>
__device__ __forceinline__ void make_parts(const Source& source, int64_t r, int64_t c,
                                           Pack<typename Source::Type, kRun> (&numbers)[Source::kParts]) {
  if constexpr (Source::kParts == 1)
    numbers[0] = source.template at<kRun>(r, c);
  else
    source.parts(r, c, numbers);
}

// Blocks per multiprocessor that leave a thread the registers for its four rows.
template <class Source>
constexpr int kTileBlocks = (sizeof(typename Source::Type) == 2 ? 4 : 3) - (Source::kParts - 1);

// Both orientations, or only the transpose (out null): a block per tile of 128 x 128 of a part's columns, in each part;
// a thread processes runs of four rows at a time. `rows` is a multiple of sixteen, `part_columns`, those of a part, of
// kRun. out_t's parts are consecutive, part_columns · rows bytes each. kColumnSums: writes the sums over the tile's
// rows to column_sums (tiles down, columns).
template <class Source, __nv_fp8_interpretation_t kFormat, bool kColumnSums>
__global__ void __launch_bounds__(kThreads, kTileBlocks<Source>)
    cast_transpose_kernel(uint8_t* out, uint8_t* out_t, float* column_sums, Source source, Fp8Target target,
                          int64_t rows, int64_t part_columns) {
  constexpr int kRuns = kTile / kRun, kQuads = kTile / kQuad, kParts = Source::kParts;
  __shared__ alignas(16) TransposeTile tile[kParts];
  __shared__ float sums_of_warp[kColumnSums ? kThreads / 32 : 1][kColumnSums ? kTile : 1];
  const int64_t columns = kParts * part_columns, first_row = blockIdx.y * int64_t{kTile},
                first_column = blockIdx.x * int64_t{kTile};
  const int column = static_cast<int>(threadIdx.x) % kRuns * kRun;
  const int64_t c = first_column + column;
  Fp8Found found;
  const float scale = *target.scale;
  // Rows from `used` to `end` count as zeros; later ones are not written.
  const int64_t used = target.used_rows(rows), end = (used + 15) / 16 * 16;
  float sums[kParts][kColumnSums ? kRun : 1] = {};
#pragma unroll 1
  for (int quad = static_cast<int>(threadIdx.x) / kRuns; quad < kQuads; quad += kThreads / kRuns) {
    const int64_t r = first_row + quad * kQuad;
    if (r >= end || c >= part_columns) break;
    Pack<typename Source::Type, kRun> from[kQuad][kParts];
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      if (r + k < used)
        make_parts(source, r + k, c, from[k]);
      else
        memset(from[k], 0, sizeof from[k]);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint2 quantized[kQuad];
#pragma unroll
      for (int k = 0; k < kQuad; ++k) {
        quantized[k] = encode_run<kFormat>(from[k][part], scale, found);
        if (out != nullptr) *reinterpret_cast<uint2*>(out + (r + k) * columns + part * part_columns + c) = quantized[k];
        if constexpr (kColumnSums) {
          float x[kRun];
          unpack(from[k][part], x);
#pragma unroll
          for (int i = 0; i < kRun; ++i) sums[part][i] += x[i];
        }
      }
      tile[part].put(column, quad, {quantized[0].x, quantized[1].x, quantized[2].x, quantized[3].x});
      tile[part].put(column + 4, quad, {quantized[0].y, quantized[1].y, quantized[2].y, quantized[3].y});
    }
  }
  __syncthreads();
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    tile[part].store(out_t + part * part_columns * rows, first_row, first_column, rows, part_columns, end);
    if constexpr (kColumnSums) {
      static_assert(kRuns == 16, "a warp has two quads of each run");
      if (part > 0) __syncthreads();
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        sums[part][i] += __shfl_xor_sync(0xFFFFFFFFu, sums[part][i], 16);
        if (threadIdx.x % 32 < 16) sums_of_warp[threadIdx.x / 32][column + i] = sums[part][i];
      }
      __syncthreads();
      const int mine = static_cast<int>(threadIdx.x);
      if (mine < kTile && first_column + mine < part_columns) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kThreads / 32; ++warp) sum += sums_of_warp[warp][mine];
        column_sums[blockIdx.y * columns + part * part_columns + first_column + mine] = sum;
      }
    }
  }
  if (target.amax != nullptr || target.counts != nullptr) publish(found, target, blockIdx.x == 0 && blockIdx.y == 0);
}

inline dim3 tiles(int64_t rows, int64_t columns) {
  return {static_cast<unsigned>((columns + kTile - 1) / kTile), static_cast<unsigned>((rows + kTile - 1) / kTile)};
}

}  // namespace tri::cuda
