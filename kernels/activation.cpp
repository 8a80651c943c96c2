#include "kernels/activation.h"

namespace tri {
namespace {

bool fits(Activation kind, const Tensor& inner, const Tensor& outer) {
  const int64_t factor = kind == Activation::kSwiglu ? 2 : 1;
  return inner.dims == 2 && outer.dims == 2 && inner.dtype == outer.dtype && inner[0] == outer[0] &&
         outer[1] == factor * inner[1];
}

}  // namespace

void check(const ActivationForward& a) {
  TRI_REQUIRE(fits(a.kind, a.out, a.inp), "{} of {} into {}", enum_name(a.kind), a.inp.shape_text(), a.out.shape_text());
}

void check(const ActivationBackward& a) {
  TRI_REQUIRE(fits(a.kind, a.dout, a.inp) && fits(a.kind, a.dout, a.dinp), "{} gradient {} of {} from {}",
              enum_name(a.kind), a.dinp.shape_text(), a.inp.shape_text(), a.dout.shape_text());
}

}  // namespace tri
