// Normal numbers, the reference.  Formulas: kernels/random.h.  Bound: arithmetic in double.
#include "kernels/random.h"

#include "io/base/parallel.h"
#include "io/base/random.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {

// Uses all cores: it is called once, before the first step, and no element depends on another.
void normal_values(const NormalValues& v) {
  constexpr int64_t kGrain = 1 << 16;
  dispatch(v.out.dtype, [&](auto type) {
    using T = decltype(type);
    T* __restrict out = v.out.as<T>();
    parallel_ranges(v.out.numel(), kGrain, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        const int64_t element = element_of(v, v.begin + i);
        const bool exists = element < v.valid;
        out[i] = from_float<T>(exists ? v.scale * random_normal(v.key, static_cast<uint64_t>(element)) : 0.0f);
      }
    });
  });
}

}  // namespace tri::cpu
