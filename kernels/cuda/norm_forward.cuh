// The kernel of norm_forward.cu and fp8_norm.cu: norm.cuh.
#pragma once

#include "kernels/cuda/norm.cuh"

namespace tri::cuda::norm {

// The input of the norm: inp, or inp + add (+ add_bias), where add may be in parts.
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

template <class T, int kVec, int kPacks, Add kAdd, class Rows>
__global__ void __launch_bounds__(512) norm_forward_kernel(Forward<T> a, Rows given, Shape s) {
  extern __shared__ __align__(16) unsigned char memory[];
  Walk<kVec> walk(s);
  constexpr bool kAdds = kAdd != Add::kNothing;
  auto operands = ForwardKernel<T, kVec, kPacks, kAdd>::inputs(memory, a, walk);
  Rows rows = given;
  rows.begin();
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
        unpack(sum, x[p]);  // as the backward pass will read it
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
      add_offset(y, a.offset);
      // Explicitly states whether a bias is added in one rounding, so that all kernels of this template round alike; it
      // matches the code that the compiler generated for runs whose bits must not change.
      if (a.bias != nullptr) {
        float bias[kVec];
        operands.vector(1, p, bias);
#pragma unroll
        for (int i = 0; i < kVec; ++i)
          x[p][i] =
              kPacks > 1 ? fmaf(x[p][i], rstd * y[i], bias[i]) : __fadd_rn(__fmul_rn(x[p][i], rstd * y[i]), bias[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[p][i] *= rstd * y[i];
      }
      rows.put(walk.at + p * walk.pack_step, x[p]);
    }
    if (threadIdx.x != 0 || !active) continue;
    if (a.mean != nullptr) a.mean[walk.row] = mean;
    a.rstd[walk.row] = rstd;
  }
  rows.end();
}

// Returns false if the rows are too wide for this GPU's shared memory, or too many for the counters of Rows.
template <class T, class Rows>
bool forward(const NormForward& n, const Rows& rows, CudaStream& stream) {
  constexpr int kVec = Pack<T>::kSize;
  const Forward<T> args = forward_args<T>(n);
  const Shape shape = shape_of(n);
  return choose_mapping<kVec>(n.inp[1], 3, [&](auto packs, dim3 block) {
    const auto launch = [&](auto add) {
      constexpr int kPacks = decltype(packs)::value;
      constexpr Add kAdd = decltype(add)::value;
      const size_t shared = ForwardKernel<T, kVec, kPacks, kAdd>::Inputs::bytes(block);
      if (!fits(shared + Rows::kSharedBytes, stream)) return false;
      auto kernel = norm_forward_kernel<T, kVec, kPacks, kAdd, Rows>;
      const unsigned blocks = persistent_blocks(kernel, block, shared, shape.rows, stream);
      if (shape.rows / (int64_t{blocks} * block.y) >= Rows::kMostPacks / kPacks) return false;
      kernel<<<blocks, block, shared, stream>>>(args, rows, shape);
      TRI_CUDA_LAUNCH("norm_forward");
      return true;
    };
    if (n.add.empty()) return launch(std::integral_constant<Add, Add::kNothing>{});
    return num_parts(n.add) == 1 ? launch(std::integral_constant<Add, Add::kWhole>{})
                                 : launch(std::integral_constant<Add, Add::kParts>{});
  });
}

}  // namespace tri::cuda::norm
