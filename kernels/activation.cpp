#include "kernels/activation.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

int64_t inner_width(Activation kind, int64_t width) { return is_gated(kind) ? 2 * width : width; }

}  // namespace

void check(const ActivationForward& a) {
  require_matrix("activation_forward", "out", a.out);
  require_tensor("activation_forward", "inp", a.inp, a.out.dtype, {a.out[0], inner_width(a.kind, a.out[1])});
  require_optional("activation_forward", "used", a.used, Dtype::kI32, {1});
}

void check(const ActivationBackward& a) {
  require_matrix("activation_backward", "dout", a.dout);
  const int64_t rows = a.dout[0], width = inner_width(a.kind, a.dout[1]);
  require_tensor("activation_backward", "inp", a.inp, a.dout.dtype, {rows, width});
  require_tensor("activation_backward", "dinp", a.dinp, a.dout.dtype, {rows, width});
  require_optional("activation_backward", "used", a.used, Dtype::kI32, {1});
}

}  // namespace tri
