#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {

void cast(const Cast& c) {
  dispatch(c.out.dtype, [&](auto out_type) {
    dispatch(c.inp.dtype, [&](auto inp_type) {
      using Out = decltype(out_type);
      Out* out = c.out.as<Out>();
      const auto* inp = c.inp.as<decltype(inp_type)>();
      for (int64_t i = 0; i < c.out.numel(); ++i) out[i] = from_float<Out>(to_float(inp[i]));
    });
  });
}

void accumulate(const Accumulate& a) {
  dispatch(a.inout.dtype, [&](auto type) {
    using T = decltype(type);
    T* inout = a.inout.as<T>();
    const T* inp = a.inp.as<T>();
    for (int64_t i = 0; i < a.inout.numel(); ++i) inout[i] = from_float<T>(to_float(inout[i]) + to_float(inp[i]));
  });
}

}  // namespace tri::cpu
