#include "kernels/fp8.h"

#include <limits>

#include "kernels/core/checks.h"

namespace tri {
namespace {

void require_fp8(const char* op, const char* operand, const Tensor& tensor) {
  TRI_REQUIRE(!tensor.empty() && is_fp8(tensor.dtype) && tensor.dims == 2, "{}: {} {} is no FP8 matrix", op, operand,
              tensor.shape_text());
}

}  // namespace

void check(const Fp8Amax& a) {
  require_matrix("fp8_amax", "inp", a.inp);
  require_tensor("fp8_amax", "amax", a.amax, Dtype::kF32, {1});
}

void check(const Fp8Cast& c) {
  require_matrix("fp8_cast", "inp", c.inp);
  TRI_REQUIRE(!c.out.empty() || !c.out_t.empty(), "fp8_cast: {} into nothing", c.inp.shape_text());
  const Dtype format = c.out.empty() ? c.out_t.dtype : c.out.dtype;
  TRI_REQUIRE(is_fp8(format), "fp8_cast: into {}", enum_name(format));
  require_optional("fp8_cast", "out", c.out, format, {c.inp[0], c.inp[1]});
  require_optional("fp8_cast", "out_t", c.out_t, format, {c.inp[1], c.inp[0]});
  require_tensor("fp8_cast", "scale", c.scale, Dtype::kF32, {1});
  require_optional("fp8_cast", "amax", c.amax, Dtype::kF32, {1});
  require_optional("fp8_cast", "counts", c.counts, Dtype::kI32, {kNumFp8Counts});
}

void check(const Fp8Transpose& t) {
  require_fp8("fp8_transpose", "inp", t.inp);
  require_tensor("fp8_transpose", "out", t.out, t.inp.dtype, {t.inp[1], t.inp[0]});
}

void check(const Fp8Scales& s) {
  const int64_t n = s.scale.numel();
  TRI_REQUIRE(is_fp8(s.format), "fp8_scales: of {}", enum_name(s.format));
  require_tensor("fp8_scales", "scale", s.scale, Dtype::kF32, {n});
  require_tensor("fp8_scales", "inverse", s.inverse, Dtype::kF32, {n});
  if (s.from != ScalesFrom::kHistory) require_tensor("fp8_scales", "amax", s.amax, Dtype::kF32, {n});
  if (s.from != ScalesFrom::kUnset) require_tensor("fp8_scales", "history", s.history, Dtype::kF32, {n});
  if (s.from == ScalesFrom::kStep) require_tensor("fp8_scales", "grad_scale", s.grad_scale, Dtype::kF32, {1});
}

void check(const Fp8CountsToFloat& c) {
  require_tensor("fp8_counts_to_float", "counts", c.counts, Dtype::kI32, {c.counts.numel()});
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
