// Flat elementwise operations, the reference.  Formulas: kernels/elementwise.h.  Bound: memory.
#include "kernels/elementwise.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {

void cast(const Cast& c) {
  dispatch(c.out.dtype, [&](auto out_type) {
    dispatch(c.inp.dtype, [&](auto inp_type) {
      using Out = decltype(out_type);
      Out* __restrict out = c.out.as<Out>();
      const auto* __restrict inp = c.inp.as<decltype(inp_type)>();
      const int64_t count = c.out.numel();
      for (int64_t i = 0; i < count; ++i) out[i] = from_float<Out>(to_float(inp[i]));
    });
  });
}

void accumulate(const Accumulate& a) {
  dispatch(a.inout.dtype, [&](auto type) {
    using T = decltype(type);
    T* __restrict inout = a.inout.as<T>();
    const T* __restrict inp = a.inp.as<T>();
    const int64_t count = a.inout.numel();
    for (int64_t i = 0; i < count; ++i) inout[i] = from_float<T>(to_float(inout[i]) + to_float(inp[i]));
  });
}

}  // namespace tri::cpu
