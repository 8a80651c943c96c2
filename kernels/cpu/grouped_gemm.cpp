// GEMMs of experts, the reference: one GEMM per expert that has rows.  Formulas and shapes: kernels/grouped_gemm.h.
// Bound: 2 · N · K FLOPs a row.
#include "kernels/grouped_gemm.h"

#include <cstring>
#include <vector>

#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Calls f(expert, first row, count) for each expert, in order.
template <class F>
void for_each_expert(const Tensor& offsets, F f) {
  const int32_t* at = offsets.as<int32_t>();
  const int64_t experts = offsets.numel() - 1;
  for (int64_t e = 0; e < experts; ++e) f(e, int64_t{at[e]}, int64_t{at[e + 1]} - at[e]);
}

Tensor of_expert(const Tensor& weight, int64_t e) { return weight.rows(e, 1).view({weight[1], weight[2]}); }

}  // namespace

void grouped_forward(const GroupedForward& a) {
  for_each_expert(a.offsets, [&](int64_t e, int64_t first, int64_t count) {
    if (count > 0)
      gemm({.out = a.out.rows(first, count),
            .a = a.inp.rows(first, count),
            .b = of_expert(a.weight, e),
            .trans_b = Trans::kYes});
  });
}

void grouped_input_gradient(const GroupedInputGradient& a) {
  for_each_expert(a.offsets, [&](int64_t e, int64_t first, int64_t count) {
    if (count > 0)
      gemm({.out = a.dinp.rows(first, count), .a = a.dout.rows(first, count), .b = of_expert(a.weight, e)});
  });
}

void grouped_weight_gradient(const GroupedWeightGradient& a) {
  for_each_expert(a.offsets, [&](int64_t e, int64_t first, int64_t count) {
    const Tensor dweight = of_expert(a.dweight, e);
    if (count > 0)
      gemm({.out = dweight,
            .a = a.dout.rows(first, count),
            .b = a.inp.rows(first, count),
            .trans_a = Trans::kYes,
            .beta = a.beta});
    else if (a.beta == 0.0f)
      std::memset(dweight.data, 0, static_cast<size_t>(dweight.bytes()));
  });
}

void grouped_fp8_gemm(const GroupedFp8Gemm& g) {
  for_each_expert(g.offsets, [&](int64_t e, int64_t first, int64_t count) {
    if (count > 0)
      fp8_gemm({.out = g.out.rows(first, count),
                .a = g.a.rows(first, count),
                .b = of_expert(g.b, e),
                .inverse_a = g.inverse_a,
                .inverse_b = g.inverse_b});
  });
}

void grouped_fp8_gradient(const GroupedFp8Gradient& g) {
  thread_local std::vector<uint8_t> dout, inp;
  const auto columns = [](const Tensor& all, int64_t first, int64_t count, std::vector<uint8_t>& scratch) {
    scratch.resize(static_cast<size_t>(all[0] * count));
    for (int64_t r = 0; r < all[0]; ++r)
      std::memcpy(scratch.data() + r * count, fp8_bytes(all) + r * all[1] + first, static_cast<size_t>(count));
    return Tensor{scratch.data(), all.dtype, {all[0], count}};
  };
  for_each_expert(g.offsets, [&](int64_t e, int64_t first, int64_t count) {
    const Tensor dweight = of_expert(g.dweight, e);
    if (count > 0)
      fp8_gemm({.out = dweight,
                .a = columns(g.dout_t, first, count, dout),
                .b = columns(g.inp_t, first, count, inp),
                .inverse_a = g.inverse_a,
                .inverse_b = g.inverse_b,
                .beta = g.beta});
    else if (g.beta == 0.0f)
      std::memset(dweight.data, 0, static_cast<size_t>(dweight.bytes()));
  });
}

}  // namespace tri::cpu
