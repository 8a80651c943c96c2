// Flat elementwise operations, the reference.  Formulas: kernels/elementwise.h.  Bound: memory.
#include "kernels/elementwise.h"

#include <algorithm>

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

// Processes one block of elements at a time, so that each part is read in a loop that vectorises.
void sum_parts(const SumParts& s) {
  dispatch(s.out.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kBlock = 1024;
    const int64_t count = s.out.numel(), num_parts = s.parts[0];
    const int64_t first_added = s.into == SumInto::kAdd ? 0 : 1;
    float sum[kBlock];
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t n = std::min(kBlock, count - begin);
      T* out = s.out.as<T>() + begin;
      const T* part = s.parts.as<T>() + first_added * count + begin;
      const T* base = s.into == SumInto::kAdd ? out : s.parts.as<T>() + begin;
      for (int64_t p = first_added; p < num_parts; ++p, part += count)
        for (int64_t i = 0; i < n; ++i) sum[i] = p == first_added ? to_float(part[i]) : sum[i] + to_float(part[i]);
#pragma GCC ivdep  // base may be out: element i is read before it is written
      for (int64_t i = 0; i < n; ++i)
        out[i] = num_parts == first_added ? base[i] : from_float<T>(to_float(base[i]) + sum[i]);
    }
  });
}

}  // namespace tri::cpu
