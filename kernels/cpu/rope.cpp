#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {

void rope(const Rope& r) {
  dispatch(r.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    T* qkv = r.qkv.as<T>();
    const float* table = r.table.as<float>();
    const int64_t half = r.table[1], head_size = 2 * half, seq_len = r.table[0];
    const float sign = r.pass == Pass::kForward ? 1.0f : -1.0f;
    for (int64_t row = 0; row < r.qkv[0]; ++row) {
      const float* angles = table + (row % seq_len) * half * 2;
      for (int64_t kv = 0; kv < r.num_kv_heads; ++kv) {
        // The group's queries and its key; the value stays as it is.
        T* heads = qkv + row * r.qkv[1] + kv * (r.group + 2) * head_size;
        for (int64_t h = 0; h <= r.group; ++h) {
          T *x1 = heads + h * head_size, *x2 = x1 + half;
          for (int64_t i = 0; i < half; ++i) {
            const float c = angles[2 * i], s = sign * angles[2 * i + 1];
            const float a = to_float(x1[i]), b = to_float(x2[i]);
            x1[i] = from_float<T>(a * c - b * s);
            x2[i] = from_float<T>(b * c + a * s);
          }
        }
      }
    }
  });
}

}  // namespace tri::cpu
