#include "kernels/norm.h"

#include <limits>

#include "kernels/core/checks.h"

namespace tri {
namespace {

// Checks the row statistics: rstd always, the mean if the norm has one.
void check_statistics(const char* op, Norm kind, int64_t rows, const Tensor& mean, const Tensor& rstd) {
  require_tensor(op, "rstd", rstd, Dtype::kF32, {rows});
  if (kind == Norm::kLayerNorm)
    require_tensor(op, "mean", mean, Dtype::kF32, {rows});
  else
    TRI_REQUIRE(mean.empty(), "{}: {} has no mean, but {} is given", op, enum_name(kind), mean.shape_text());
}

// Checks the vector added to the normed rows, or its gradient.
void check_bias(const char* op, const char* operand, Norm kind, const Tensor& bias, Dtype dtype, int64_t width) {
  TRI_REQUIRE(bias.empty() || kind == Norm::kLayerNorm, "{}: {} has no bias, but {} {} is given", op, enum_name(kind),
              operand, bias.shape_text());
  require_optional(op, operand, bias, dtype, {width});
}

// Kernels count the columns of both parameter gradients in ints.
void check_width(const char* op, int64_t width) {
  TRI_REQUIRE(width <= std::numeric_limits<int>::max() / 2, "{}: rows of {} elements", op, width);
}

// Checks an operand (R, C), or (P, R, C) with any P.
void check_parts(const char* op, const char* operand, const Tensor& tensor, Dtype dtype, int64_t rows, int64_t width) {
  if (tensor.dims == 3)
    require_tensor(op, operand, tensor, dtype, {tensor[0], rows, width});
  else
    require_tensor(op, operand, tensor, dtype, {rows, width});
}

}  // namespace

void check(const NormForward& n) {
  check_all_but_out(n);
  require_tensor("norm_forward", "out", n.out, n.inp.dtype, {n.inp[0], n.inp[1]});
}

void check_all_but_out(const NormForward& n) {
  const char* op = "norm_forward";
  require_matrix(op, "inp", n.inp);
  const Dtype dtype = n.inp.dtype;
  const int64_t rows = n.inp[0], width = n.inp[1];
  check_width(op, width);
  check_statistics(op, n.kind, rows, n.mean, n.rstd);
  TRI_REQUIRE(n.add.empty() == n.sum.empty(), "{}: add {} and sum {} go together", op, n.add.shape_text(),
              n.sum.shape_text());
  TRI_REQUIRE(!n.add.empty() || n.add_bias.empty(), "{}: add_bias {} without add", op, n.add_bias.shape_text());
  if (!n.add.empty()) check_parts(op, "add", n.add, dtype, rows, width);
  require_optional(op, "sum", n.sum, dtype, {rows, width});
  require_optional(op, "add_bias", n.add_bias, dtype, {width});
  require_tensor(op, "weight", n.weight, dtype, {width});
  check_bias(op, "bias", n.kind, n.bias, dtype, width);
}

void check(const NormBackward& n) {
  const char* op = "norm_backward";
  require_matrix(op, "inp", n.inp);
  const Dtype dtype = n.inp.dtype;
  const int64_t rows = n.inp[0], width = n.inp[1];
  check_width(op, width);
  require_tensor(op, "dinp", n.dinp, dtype, {rows, width});
  require_optional(op, "dresidual", n.dresidual, dtype, {rows, width});
  check_parts(op, "dout", n.dout, dtype, rows, width);
  require_tensor(op, "weight", n.weight, dtype, {width});
  require_tensor(op, "dweight", n.dweight, Dtype::kF32, {width});
  check_bias(op, "dbias", n.kind, n.dbias, Dtype::kF32, width);
  check_statistics(op, n.kind, rows, n.mean, n.rstd);
}

void check(const ResidualAdd& a) {
  const char* op = "residual_add";
  require_matrix(op, "inp", a.inp);
  require_tensor(op, "out", a.out, a.inp.dtype, {a.inp[0], a.inp[1]});
  check_parts(op, "add", a.add, a.inp.dtype, a.inp[0], a.inp[1]);
  require_optional(op, "add_bias", a.add_bias, a.inp.dtype, {a.inp[1]});
}

}  // namespace tri
