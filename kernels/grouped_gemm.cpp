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

namespace {

void require_fp8(const char* op, const char* what, const Tensor& tensor, std::initializer_list<int64_t> shape) {
  TRI_REQUIRE(is_fp8(tensor.dtype), "{}: {} is {}, not FP8", op, what, tensor.shape_text());
  require_tensor(op, what, tensor, tensor.dtype, shape);
  TRI_REQUIRE(tensor[tensor.dims - 1] % kFp8Multiple == 0, "{}: the rows of {} {} are not multiples of {}", op, what,
              tensor.shape_text(), kFp8Multiple);
}

void require_one_gradient(const char* op, const Tensor& a, const Tensor& b) {
  TRI_REQUIRE(a.dtype == Dtype::kE4M3 || b.dtype == Dtype::kE4M3, "{}: both operands are E5M2", op);
}

}  // namespace

void check(const GroupedFp8Gemm& g) {
  constexpr const char* kOp = "grouped_fp8_gemm";
  TRI_REQUIRE(g.b.dims == 3 && g.b.numel() > 0, "{}: the experts' weights are {}", kOp, g.b.shape_text());
  require_matrix(kOp, "out", g.out);
  require_tensor(kOp, "out", g.out, g.out.dtype, {g.out[0], g.b[1]});
  require_fp8(kOp, "a", g.a, {g.out[0], g.b[2]});
  require_fp8(kOp, "b", g.b, {g.b[0], g.b[1], g.b[2]});
  require_one_gradient(kOp, g.a, g.b);
  require_tensor(kOp, "offsets", g.offsets, Dtype::kI32, {g.b[0] + 1});
  require_tensor(kOp, "inverse_a", g.inverse_a, Dtype::kF32, {1});
  require_tensor(kOp, "inverse_b", g.inverse_b, Dtype::kF32, {1});
}

void check(const GroupedFp8Gradient& g) {
  constexpr const char* kOp = "grouped_fp8_gradient";
  TRI_REQUIRE(g.dweight.dims == 3 && g.dweight.numel() > 0, "{}: the experts' weights are {}", kOp,
              g.dweight.shape_text());
  require_tensor(kOp, "dweight", g.dweight, Dtype::kF32, {g.dweight[0], g.dweight[1], g.dweight[2]});
  TRI_REQUIRE(g.dout_t.dims == 2, "{}: dout_t {}", kOp, g.dout_t.shape_text());
  require_fp8(kOp, "dout_t", g.dout_t, {g.dweight[1], g.dout_t[1]});
  require_fp8(kOp, "inp_t", g.inp_t, {g.dweight[2], g.dout_t[1]});
  require_one_gradient(kOp, g.dout_t, g.inp_t);
  require_tensor(kOp, "offsets", g.offsets, Dtype::kI32, {g.dweight[0] + 1});
  require_tensor(kOp, "inverse_a", g.inverse_a, Dtype::kF32, {1});
  require_tensor(kOp, "inverse_b", g.inverse_b, Dtype::kF32, {1});
  TRI_REQUIRE(g.beta == 0.0f || g.beta == 1.0f, "{}: beta {}", kOp, g.beta);
}

}  // namespace tri
