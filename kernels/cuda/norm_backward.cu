// The gradients of LayerNorm and RMSNorm: kernels/cuda/norm.cuh. A thread keeps its columns' parameter gradients in
// registers over all its rows; a second kernel adds the blocks' sums in a fixed order. R·C elements are moved 4 times
// (3 without dresidual), and once more for each further part of dout.
#include "kernels/cuda/norm.cuh"

namespace tri::cuda {
namespace norm {
namespace {

// kAdds: dresidual is added to dinp. kParts: dout has several parts.
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
      operands.row(0, p, x);
      operands.row(1, p, dy);
      if constexpr (kParts) {
        add_parts(a.more_douts, walk.at + p * walk.pack_step, dy);
        operands.keep(1, p, dy);
      }
      operands.vector(0, p, weight);
      add_offset(weight, a.offset);
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
      operands.row(0, p, x);
      operands.row(1, p, dy);
      operands.vector(0, p, other);
      add_offset(other, a.offset);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[i] = fmaf(x[i], rstd, shift);
        x[i] = fmaf(dy[i] * other[i], rstd, fmaf(x[i], slope, offset));
      }
      if constexpr (kAdds) {
        operands.row(2, p, other);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[i] += other[i];
      }
      store_pack(a.dinp + walk.at + p * walk.pack_step, pack_floats<T>(x));
    }
  }
  copy_async_wait<0>();
  __syncthreads();                                    // the rows' memory now holds the columns
  float* columns = reinterpret_cast<float*>(memory);  // (2, C)
  // The block's groups add their sums one after another.
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

// Returns false if the rows are too wide for this GPU's shared memory.
template <class T>
bool backward(const NormBackward& n, CudaStream& stream) {
  constexpr int kVec = Pack<T>::kSize;
  const Shape shape = shape_of(n);
  // Short rows get fewer registers and more concurrent rows, long rows fewer warps per barrier. Both were measured.
  const int64_t most = n.inp[1] <= 4 * 2 * 32 * kVec ? 2 : 3;
  return choose_mapping<kVec>(n.inp[1], most, [&](auto packs, dim3 block) {
    const auto launch = [&](auto adds, auto parts) {
      constexpr int kPacks = decltype(packs)::value;
      constexpr bool kAdds = decltype(adds)::value;
      auto kernel = norm_backward_kernel<T, kVec, kPacks, kAdds, decltype(parts)::value>;
      const size_t columns = 2 * sizeof(float) * static_cast<size_t>(shape.width);
      const size_t shared = std::max(columns, BackwardKernel<T, kVec, kPacks, kAdds>::Inputs::bytes(block));
      if (!fits(shared, stream)) return false;
      const unsigned blocks = persistent_blocks(kernel, block, shared, shape.rows, stream);
      float* partial = column_partials(shape, blocks, stream);
      kernel<<<blocks, block, shared, stream>>>(backward_args<T>(n, partial), shape);
      TRI_CUDA_LAUNCH("norm_backward");
      add_column_partials(n, partial, blocks, stream);
      return true;
    };
    const auto launch_with = [&](auto adds) {
      return num_parts(n.dout) == 1 ? launch(adds, std::false_type{}) : launch(adds, std::true_type{});
    };
    return n.dresidual.empty() ? launch_with(std::false_type{}) : launch_with(std::true_type{});
  });
}

}  // namespace

float* column_partials(const Shape& s, unsigned blocks, CudaStream& stream) {
  const size_t bytes = 2 * sizeof(float) * static_cast<size_t>(s.width) * blocks;
  return static_cast<float*>(workspace(stream, Scratch::kColumnSums, bytes));
}

void add_column_partials(const NormBackward& n, const float* partial, unsigned blocks, CudaStream& stream) {
  add_slabs<2>({{pointer<float>(n.dweight), pointer<float>(n.dbias)}}, partial, n.inp[1], static_cast<int>(blocks),
               stream);
}

}  // namespace norm

void norm_backward(const NormBackward& n, CudaStream& stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    if (!norm::in_packs<T>(n) || !norm::backward<T>(n, stream)) norm::wide_backward(n, stream);
  });
}

}  // namespace tri::cuda
