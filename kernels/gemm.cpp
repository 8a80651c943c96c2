#include "kernels/gemm.h"

namespace tri {

void check(const Gemm& g) {
  TRI_REQUIRE(g.out.dims == 2 && g.a.dims == 2 && g.b.dims == 2, "gemm of {} x {} into {}", g.a.shape_text(),
              g.b.shape_text(), g.out.shape_text());
  const bool ta = g.trans_a == Trans::kYes, tb = g.trans_b == Trans::kYes;
  const int64_t m = g.a[ta ? 1 : 0], k = g.a[ta ? 0 : 1], kb = g.b[tb ? 1 : 0], n = g.b[tb ? 0 : 1];
  TRI_REQUIRE(k == kb && g.out[0] == m && g.out[1] == n, "gemm of {}{} x {}{} into {}", g.a.shape_text(), ta ? "^T" : "",
              g.b.shape_text(), tb ? "^T" : "", g.out.shape_text());
  TRI_REQUIRE(g.a.dtype == g.b.dtype && (g.out.dtype == g.a.dtype || g.out.dtype == Dtype::kF32),
              "gemm of {} x {} into {}", g.a.shape_text(), g.b.shape_text(), g.out.shape_text());
  TRI_REQUIRE(g.bias.empty() || (g.bias.numel() == n && g.bias.dtype == g.a.dtype), "gemm of {} columns with bias {}", n,
              g.bias.shape_text());
  constexpr int64_t kMaxDim = int64_t{1} << 31;  // BLAS takes ints
  TRI_REQUIRE(m < kMaxDim && n < kMaxDim && k < kMaxDim, "gemm of {} x {}", g.a.shape_text(), g.b.shape_text());
}

void check(const BiasBackward& b) {
  TRI_REQUIRE(b.dout.dims == 2 && b.dbias.numel() == b.dout[1] && b.dbias.dtype == Dtype::kF32,
              "bias gradient {} of {}", b.dbias.shape_text(), b.dout.shape_text());
}

}  // namespace tri
