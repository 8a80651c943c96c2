// Selects the kernel of fp8_cast.cuh for a cast.
#pragma once

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fp8_cast.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {

// Blocks that stride over all runs: a few per multiprocessor, so that there are few atomics.
inline unsigned striding_blocks(int64_t runs, CudaStream& stream) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((runs + kThreads - 1) / kThreads, 1, int64_t{16} * num_multiprocessors(stream)));
}

// Returns whether the tensors of bytes can be read and written `unit` at a time along `extents`.
inline bool in_units(int unit, std::initializer_list<int64_t> extents, std::initializer_list<Tensor> tensors) {
  uintptr_t bits = 0;
  for (const int64_t extent : extents) bits |= static_cast<uintptr_t>(extent);
  for (const Tensor& tensor : tensors) bits |= reinterpret_cast<uintptr_t>(tensor.data);
  return bits % static_cast<uintptr_t>(unit) == 0;
}

// A thread per column, for casts without a tile's kernel, which sums columns as well.
template <class Source>
__global__ void column_sums_kernel(float* sums, Source source, int64_t rows, int64_t columns) {
  const int64_t c = thread_index();
  if (c >= columns) return;
  float sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += to_float(source.template at<1>(r, c).item[0]);
  sums[c] += sum;
}

template <__nv_fp8_interpretation_t kFormat, class Source>
void launch_cast_as(const Source& source, bool wide, const Fp8Cast& c, int64_t rows, int64_t columns,
                    CudaStream& stream) {
  const Fp8Target target{pointer<float>(c.scale), pointer<float>(c.amax),   pointer<int64_t>(c.counts),
                         rows * columns,          pointer<int32_t>(c.used), columns};
  uint8_t *out = fp8_bytes(c.out), *out_t = fp8_bytes(c.out_t);
  const int64_t runs = rows * columns / kRun;
  const int64_t part_columns = columns / Source::kParts;
  if (!c.out_t.empty() && wide && in_units(16, {rows}, {c.out_t}) && in_units(kRun, {part_columns}, {c.out})) {
    const dim3 grid = tiles(rows, part_columns);
    if (c.dbias.empty()) {
      cast_transpose_kernel<Source, kFormat, false>
          <<<grid, kThreads, 0, stream>>>(out, out_t, nullptr, source, target, rows, part_columns);
      return;
    }
    auto* sums = static_cast<float*>(workspace(stream, Scratch::kColumnSums, sizeof(float) * grid.y * columns));
    cast_transpose_kernel<Source, kFormat, true>
        <<<grid, kThreads, 0, stream>>>(out, out_t, sums, source, target, rows, part_columns);
    add_slabs<1>({{pointer<float>(c.dbias)}}, sums, columns, static_cast<int>(grid.y), stream);
    return;
  }
  if (c.out_t.empty() && wide && runs <= UINT32_MAX / 2 && in_units(kRun, {columns}, {c.out})) {
    cast_runs_kernel<Source, kFormat><<<striding_blocks(runs, stream), kThreads, 0, stream>>>(
        out, source, target, static_cast<uint32_t>(runs), static_cast<uint32_t>(columns / kRun));
  } else {
    cast_elements_kernel<Source, kFormat>
        <<<striding_blocks(rows * columns, stream), kThreads, 0, stream>>>(out, out_t, source, target, rows, columns);
  }
  if (!c.dbias.empty())
    column_sums_kernel<<<blocks_for(columns), kThreads, 0, stream>>>(pointer<float>(c.dbias), source, rows, columns);
}

// Casts the (rows, columns) numbers of `source` according to `c`. `wide`: it can produce runs, if columns divide into
// them.
template <class Source>
void launch_cast(const Source& source, bool wide, const Fp8Cast& c, int64_t rows, int64_t columns, CudaStream& stream) {
  if (c.format() == Dtype::kE4M3)
    launch_cast_as<__NV_E4M3>(source, wide, c, rows, columns, stream);
  else
    launch_cast_as<__NV_E5M2>(source, wide, c, rows, columns, stream);
}

}  // namespace tri::cuda
