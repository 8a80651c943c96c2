#include "kernels/norm.h"

namespace tri {
namespace {

bool same(const Tensor& a, const Tensor& b) { return a.dtype == b.dtype && a.shape == b.shape && a.dims == b.dims; }
bool is_vector(const Tensor& t, int64_t size, Dtype dtype) { return t.numel() == size && t.dtype == dtype; }

}  // namespace

void check(const NormForward& n) {
  TRI_REQUIRE(n.inp.dims == 2 && same(n.out, n.inp), "norm of {} into {}", n.inp.shape_text(), n.out.shape_text());
  const int64_t rows = n.inp[0], width = n.inp[1];
  TRI_REQUIRE(n.add.empty() || (same(n.add, n.inp) && same(n.sum, n.inp)), "norm of {} + {} kept in {}",
              n.inp.shape_text(), n.add.shape_text(), n.sum.shape_text());
  TRI_REQUIRE(!n.add.empty() || (n.sum.empty() && n.add_bias.empty()), "norm with a sum but nothing to add");
  TRI_REQUIRE(n.add_bias.empty() || is_vector(n.add_bias, width, n.inp.dtype), "norm over {} adds bias {}", width,
              n.add_bias.shape_text());
  TRI_REQUIRE(is_vector(n.weight, width, n.inp.dtype) && is_vector(n.rstd, rows, Dtype::kF32),
              "norm of {} with weight {} and rstd {}", n.inp.shape_text(), n.weight.shape_text(), n.rstd.shape_text());
  const bool layernorm = n.kind == Norm::kLayerNorm;
  TRI_REQUIRE(layernorm == !n.mean.empty() && (!layernorm || is_vector(n.mean, rows, Dtype::kF32)),
              "{} with mean {}", enum_name(n.kind), n.mean.shape_text());
  TRI_REQUIRE(n.bias.empty() || (layernorm && is_vector(n.bias, width, n.inp.dtype)), "{} over {} with bias {}",
              enum_name(n.kind), width, n.bias.shape_text());
}

void check(const NormBackward& n) {
  TRI_REQUIRE(n.inp.dims == 2 && same(n.dinp, n.inp) && same(n.dout, n.inp) &&
                  (n.dresidual.empty() || same(n.dresidual, n.inp)),
              "norm gradient {} of {} from {} and {}", n.dinp.shape_text(), n.inp.shape_text(), n.dout.shape_text(),
              n.dresidual.shape_text());
  const int64_t rows = n.inp[0], width = n.inp[1];
  const bool layernorm = n.kind == Norm::kLayerNorm;
  TRI_REQUIRE(is_vector(n.weight, width, n.inp.dtype) && is_vector(n.dweight, width, Dtype::kF32) &&
                  is_vector(n.rstd, rows, Dtype::kF32),
              "norm gradient of {} with weight {}, dweight {}, rstd {}", n.inp.shape_text(), n.weight.shape_text(),
              n.dweight.shape_text(), n.rstd.shape_text());
  TRI_REQUIRE(layernorm == !n.mean.empty() && (!layernorm || is_vector(n.mean, rows, Dtype::kF32)),
              "{} with mean {}", enum_name(n.kind), n.mean.shape_text());
  TRI_REQUIRE(n.dbias.empty() || (layernorm && is_vector(n.dbias, width, Dtype::kF32)), "{} over {} with dbias {}",
              enum_name(n.kind), width, n.dbias.shape_text());
}

void check(const ResidualAdd& a) {
  TRI_REQUIRE(a.inp.dims == 2 && same(a.out, a.inp) && same(a.add, a.inp) &&
                  (a.add_bias.empty() || is_vector(a.add_bias, a.inp[1], a.inp.dtype)),
              "residual sum {} = {} + {} + {}", a.out.shape_text(), a.inp.shape_text(), a.add.shape_text(),
              a.add_bias.shape_text());
}

}  // namespace tri
