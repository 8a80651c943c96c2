#include "kernels/grouped_gemm.h"

#include <limits>

#include "kernels/core/checks.h"

namespace tri {
namespace {

void check_operands(const char* op, const Tensor& outputs, const Tensor& inputs, const Tensor& weight,
                    const Tensor& offsets) {
  TRI_REQUIRE(weight.dims == 3 && weight.numel() > 0, "{}: the experts' weights are {}", op, weight.shape_text());
  require_matrix(op, "the rows of outputs", outputs);
  require_tensor(op, "the rows of outputs", outputs, outputs.dtype, {outputs[0], weight[1]});
  require_tensor(op, "the rows of inputs", inputs, outputs.dtype, {outputs[0], weight[2]});
  require_tensor(op, "offsets", offsets, Dtype::kI32, {weight[0] + 1});
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  TRI_REQUIRE(outputs[0] > 0 && outputs[0] <= kMax && weight[1] <= kMax && weight[2] <= kMax, "{}: {} rows, weights {}",
              op, outputs[0], weight.shape_text());
}

}  // namespace

void check(const GroupedForward& a) {
  check_operands("grouped_forward", a.out, a.inp, a.weight, a.offsets);
  require_tensor("grouped_forward", "weight", a.weight, a.inp.dtype, {a.weight[0], a.weight[1], a.weight[2]});
}

void check(const GroupedInputGradient& a) {
  check_operands("grouped_input_gradient", a.dout, a.dinp, a.weight, a.offsets);
  require_tensor("grouped_input_gradient", "weight", a.weight, a.dout.dtype, {a.weight[0], a.weight[1], a.weight[2]});
}

void check(const GroupedWeightGradient& a) {
  check_operands("grouped_weight_gradient", a.dout, a.inp, a.dweight, a.offsets);
  require_tensor("grouped_weight_gradient", "dweight", a.dweight, Dtype::kF32,
                 {a.dweight[0], a.dweight[1], a.dweight[2]});
  TRI_REQUIRE(a.beta == 0.0f || a.beta == 1.0f, "grouped_weight_gradient: beta {}", a.beta);
}

}  // namespace tri
