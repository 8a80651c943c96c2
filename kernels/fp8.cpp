#include "kernels/fp8.h"

#include <limits>

#include "kernels/core/checks.h"
#include "kernels/core/dims.h"

namespace tri {
namespace {

void require_fp8(const char* op, const char* operand, const Tensor& tensor) {
  TRI_REQUIRE(!tensor.empty() && is_fp8(tensor.dtype) && tensor.dims == 2, "{}: {} {} is not an FP8 matrix", op,
              operand, tensor.shape_text());
}

// Checks the outputs of a cast of an (R, C) tensor.
void check_targets(const char* op, const Fp8Cast& c, int64_t rows, int64_t columns) {
  TRI_REQUIRE(!c.out.empty() || !c.out_t.empty(), "{}: ({}, {}) into nothing", op, rows, columns);
  TRI_REQUIRE(is_fp8(c.format()), "{}: into {}", op, enum_name(c.format()));
  require_optional(op, "out", c.out, c.format(), {rows, columns});
  require_optional(op, "out_t", c.out_t, c.format(), {columns, rows});
  require_tensor(op, "scale", c.scale, Dtype::kF32, {1});
  require_optional(op, "amax", c.amax, Dtype::kF32, {1});
  require_optional(op, "counts", c.counts, Dtype::kI64, {kNumFp8Counts});
  require_optional(op, "dbias", c.dbias, Dtype::kF32, {columns});
  require_optional(op, "used", c.used, Dtype::kI32, {1});
  TRI_REQUIRE(c.used.empty() || c.dbias.empty(), "{}: sums of a part of the rows", op);
}

}  // namespace

void check(const Fp8Amax& a) {
  require_matrix("fp8_amax", "inp", a.inp);
  require_tensor("fp8_amax", "amax", a.amax, Dtype::kF32, {1});
  require_optional("fp8_amax", "used", a.used, Dtype::kI32, {1});
}

void check(const Fp8Cast& c) {
  require_matrix("fp8_cast", "inp", c.inp);
  check_targets("fp8_cast", c, c.inp[0], c.inp[1]);
}

void check(const char* op, const Fp8SliceWeights& c, int64_t n) {
  const int64_t slots = c.scale.numel();
  require_tensor(op, "quantized", c.out, Dtype::kE4M3, {n});
  require_tensor(op, "slot", c.slot, Dtype::kI32, {c.slot.numel()});
  require_tensor(op, "scale", c.scale, Dtype::kF32, {slots});
  require_tensor(op, "amax", c.amax, Dtype::kF32, {slots});
  require_tensor(op, "counts", c.counts, Dtype::kI64, {slots, kNumFp8Counts});
}

void check(const Fp8CastSlice& c) {
  const int64_t n = c.inp.numel();
  require_tensor("fp8_cast_slice", "inp", c.inp, Dtype::kF32, {n});
  TRI_REQUIRE(n % kBlock == 0, "fp8_cast_slice: inp {} is not whole blocks of {}", c.inp.shape_text(), kBlock);
  require_tensor("fp8_cast_slice", "block_tensor", c.block_tensor, Dtype::kI32, {n / kBlock});
  check("fp8_cast_slice", c.quantized, n);
}

void check(const Fp8NormForward& n) {
  const char* const op = "fp8_norm_forward";
  check_all_but_out(n.norm);
  TRI_REQUIRE(n.norm.out.empty(), "{}: the norm has an out of its own", op);
  TRI_REQUIRE(n.cast.inp.empty() && n.cast.out_t.empty() && n.cast.dbias.empty(), "{}: casts to rows alone", op);
  check_targets(op, n.cast, n.norm.inp[0], n.norm.inp[1]);
  TRI_REQUIRE(n.cast.format() == Dtype::kE4M3, "{}: to {}", op, enum_name(n.cast.format()));
}

void check(const Fp8ActivationForward& a) {
  const char* const op = "fp8_activation_forward";
  const int64_t inputs = is_gated(a.kind) ? 2 : 1;
  require_matrix(op, "inp", a.inp);
  TRI_REQUIRE(a.inp[1] % inputs == 0, "{}: inp {} has no gate and up", op, a.inp.shape_text());
  TRI_REQUIRE(a.cast.inp.empty() && a.cast.dbias.empty(), "{}: the cast has an inp or a bias of its own", op);
  check_targets(op, a.cast, a.inp[0], a.inp[1] / inputs);
}

void check(const Fp8ActivationBackward& a) {
  const char* const op = "fp8_activation_backward";
  const int64_t inputs = is_gated(a.kind) ? 2 : 1;
  require_matrix(op, "dout", a.dout);
  require_tensor(op, "inp", a.inp, a.dout.dtype, {a.dout[0], inputs * a.dout[1]});
  TRI_REQUIRE(a.cast.inp.empty(), "{}: the cast has an inp of its own", op);
  check_targets(op, a.cast, a.inp[0], a.inp[1]);
}

void check(const Fp8Transpose& t) {
  require_optional("fp8_transpose", "used", t.used, Dtype::kI32, {1});
  if (t.inp.dims == 3) {
    TRI_REQUIRE(is_fp8(t.inp.dtype) && t.used.empty(), "fp8_transpose: inp {}", t.inp.shape_text());
    return require_tensor("fp8_transpose", "out", t.out, t.inp.dtype, {t.inp[0], t.inp[2], t.inp[1]});
  }
  require_fp8("fp8_transpose", "inp", t.inp);
  require_tensor("fp8_transpose", "out", t.out, t.inp.dtype, {t.inp[1], t.inp[0]});
}

void check(const Fp8Scales& s) {
  const int64_t n = s.scale.numel();
  TRI_REQUIRE(is_fp8(s.format), "fp8_scales: of {}", enum_name(s.format));
  require_tensor("fp8_scales", "scale", s.scale, Dtype::kF32, {n});
  require_tensor("fp8_scales", "inverse", s.inverse, Dtype::kF32, {n, kFp8InverseStride});
  if (s.from != ScalesFrom::kHistory) require_tensor("fp8_scales", "amax", s.amax, Dtype::kF32, {n});
  if (s.from != ScalesFrom::kUnset) require_tensor("fp8_scales", "history", s.history, Dtype::kF32, {n});
  if (s.from == ScalesFrom::kStep) require_tensor("fp8_scales", "grad_scale", s.grad_scale, Dtype::kF32, {1});
}

void check(const Fp8CountsToFloat& c) {
  require_tensor("fp8_counts_to_float", "counts", c.counts, Dtype::kI64, {c.counts.numel()});
  require_tensor("fp8_counts_to_float", "out", c.out, Dtype::kF32, {c.counts.numel()});
}

void check(const Fp8Gemm& g) {
  require_fp8("fp8_gemm", "a", g.a);
  require_fp8("fp8_gemm", "b", g.b);
  const int64_t m = g.a[0], n = g.b[0], k = g.a[1];
  TRI_REQUIRE(g.b[1] == k, "fp8_gemm: a {} and b {}^T do not multiply", g.a.shape_text(), g.b.shape_text());
  TRI_REQUIRE(g.a.dtype == Dtype::kE4M3 || g.b.dtype == Dtype::kE4M3, "fp8_gemm: both operands are e5m2");
  require_float("fp8_gemm", "out", g.out);
  require_tensor("fp8_gemm", "out", g.out, g.out.dtype, {m, n});
  require_optional("fp8_gemm", "bias", g.bias, g.out.dtype, {n});
  require_tensor("fp8_gemm", "inverse_a", g.inverse_a, Dtype::kF32, {1});
  require_tensor("fp8_gemm", "inverse_b", g.inverse_b, Dtype::kF32, {1});
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  TRI_REQUIRE(
      m > 0 && n > 0 && k > 0 && m <= kMax && n <= kMax && k <= kMax && n % kFp8Multiple == 0 && k % kFp8Multiple == 0,
      "fp8_gemm: M {}, N {}, K {}; N and K must be multiples of {}", m, n, k, kFp8Multiple);
}

}  // namespace tri
