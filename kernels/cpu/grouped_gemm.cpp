// GEMMs of experts, the reference: one GEMM per expert that has rows.  Formulas and shapes: kernels/grouped_gemm.h.
// Bound: 2 · N · K FLOPs a row.
#include "kernels/grouped_gemm.h"

#include <cstring>

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

}  // namespace tri::cpu
