// Residual addition and LayerNorm or RMSNorm: kernels/cuda/norm.cuh. R·C elements are moved 2 times (4 with a
// residual), and once more for each further part of an operand.
#include "kernels/cuda/norm.cuh"

namespace tri::cuda {
namespace norm {
namespace {

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
      operands.row(0, p, x[p]);
      if constexpr (kAdds) {
        float y[kVec];
        operands.row(1, p, y);
        if constexpr (kAdd == Add::kParts) add_parts(a.more_adds, walk.at + p * walk.pack_step, y);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[p][i] += y[i];
        if (a.add_bias != nullptr) {
          operands.vector(2, p, y);
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
      operands.vector(0, p, y);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[p][i] *= rstd * y[i];
      if (a.bias != nullptr) {
        operands.vector(1, p, y);
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

// False: the rows are too wide for this GPU's shared memory.
template <class T>
bool forward(const NormForward& n, CudaStream& stream) {
  constexpr int kVec = Pack<T>::kSize;
  const Forward<T> args = forward_args<T>(n);
  const Shape shape = shape_of(n);
  return choose_mapping<kVec>(n.inp[1], 3, [&](auto packs, dim3 block) {
    const auto launch = [&](auto add) {
      constexpr int kPacks = decltype(packs)::value;
      constexpr Add kAdd = decltype(add)::value;
      const size_t shared = ForwardKernel<T, kVec, kPacks, kAdd>::Inputs::bytes(block);
      if (!fits(shared, stream)) return false;
      auto kernel = norm_forward_kernel<T, kVec, kPacks, kAdd>;
      kernel<<<persistent_blocks(kernel, block, shared, shape.rows, stream), block, shared, stream>>>(args, shape);
      TRI_CUDA_LAUNCH("norm_forward");
      return true;
    };
    if (n.add.empty()) return launch(std::integral_constant<Add, Add::kNothing>{});
    return num_parts(n.add) == 1 ? launch(std::integral_constant<Add, Add::kWhole>{})
                                 : launch(std::integral_constant<Add, Add::kParts>{});
  });
}

}  // namespace
}  // namespace norm

void norm_forward(const NormForward& n, CudaStream& stream) {
  if (n.inp.numel() == 0) return;
  dispatch(n.inp.dtype, [&](auto type) {
    using T = decltype(type);
    if (!norm::in_packs<T>(n) || !norm::forward<T>(n, stream)) norm::wide_forward(n, stream);
  });
}

}  // namespace tri::cuda
