#include "kernels/gemm.h"

#include <limits>

#include "kernels/core/checks.h"

namespace tri {

Gemm as_gemm(const SymmetricProduct& p) {
  return {.out = p.out,
          .a = p.a,
          .b = p.a,
          .trans_a = p.trans_a,
          .trans_b = p.trans_a == Trans::kYes ? Trans::kNo : Trans::kYes,
          .alpha = p.alpha,
          .beta = p.beta,
          .addend = p.addend};
}

void check(const Gemm& g) {
  require_matrix("gemm", "a", g.a);
  const bool ta = g.trans_a == Trans::kYes, tb = g.trans_b == Trans::kYes;
  require_matrix("gemm", "b", g.b);
  const int64_t m = g.a[ta ? 1 : 0], k = g.a[ta ? 0 : 1], n = g.b[tb ? 0 : 1];
  TRI_REQUIRE(g.b[tb ? 1 : 0] == k && g.b.dtype == g.a.dtype, "gemm: a {}{} and b {}{} do not multiply",
              g.a.shape_text(), ta ? "^T" : "", g.b.shape_text(), tb ? "^T" : "");
  require_float("gemm", "out", g.out);
  TRI_REQUIRE(g.out.dtype == g.a.dtype || g.out.dtype == Dtype::kF32, "gemm: {} into {}", g.a.shape_text(),
              g.out.shape_text());
  require_tensor("gemm", "out", g.out, g.out.dtype, {m, n});
  require_optional("gemm", "bias", g.bias, g.a.dtype, {n});
  TRI_REQUIRE(g.out.data != g.a.data && g.out.data != g.b.data, "gemm: out {} may not be an operand",
              g.out.shape_text());
  require_optional("gemm", "addend", g.addend, g.out.dtype, {m, n});
  TRI_REQUIRE(g.addend.empty() || (g.addend.data != g.out.data && g.beta != 0.0f),
              "gemm: addend {} with beta {}, or the same memory as out", g.addend.shape_text(), g.beta);
  const bool only_product = g.bias.empty() && g.epilogue == Epilogue::kNone && g.dbias.empty();
  TRI_REQUIRE((g.alpha == 1.0f && g.addend.empty()) || only_product, "gemm: alpha {} with a bias or an epilogue",
              g.alpha);
  if (g.epilogue != Epilogue::kNone) {
    require_tensor("gemm", "pre", g.pre, g.out.dtype, {m, n});
    TRI_REQUIRE(g.beta == 0.0f && g.pre.data != g.out.data, "gemm: an epilogue with beta {}", g.beta);
  }
  const bool dbias_of_out = g.epilogue == Epilogue::kGeluBackward;
  TRI_REQUIRE(g.dbias.empty() || ta != dbias_of_out, "gemm: dbias of neither a transposed a nor of GeLU's gradient");
  require_optional("gemm", "dbias", g.dbias, Dtype::kF32, {dbias_of_out ? n : m});
  constexpr int64_t kMax = std::numeric_limits<int>::max();  // BLAS counts in int
  TRI_REQUIRE(m > 0 && n > 0 && k > 0 && m <= kMax && n <= kMax && k <= kMax, "gemm: M {}, N {}, K {}", m, n, k);
}

void check(const SymmetricProduct& p) {
  require_matrix("symmetric_product", "a", p.a);
  const int64_t side = p.a[p.trans_a == Trans::kYes ? 1 : 0];
  require_tensor("symmetric_product", "out", p.out, p.a.dtype, {side, side});
  require_optional("symmetric_product", "addend", p.addend, p.a.dtype, {side, side});
  TRI_REQUIRE(p.out.data != p.a.data && p.out.data != p.addend.data, "symmetric_product: out {} may not be an operand",
              p.out.shape_text());
  TRI_REQUIRE(p.addend.empty() == (p.beta == 0.0f), "symmetric_product: beta {} with{} addend", p.beta,
              p.addend.empty() ? "out" : "");
  check(as_gemm(p));
}

void check(const BiasBackward& b) {
  require_matrix("bias_backward", "dout", b.dout);
  require_tensor("bias_backward", "dbias", b.dbias, Dtype::kF32, {b.dout[1]});
}

}  // namespace tri
