// Rotary position embedding, the reference.  Formulas and shapes: kernels/rope.h.  Bound: memory.
#include "kernels/rope.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Rotates one head by `angles` (HS/2, 2), or back for sign -1.
template <class T>
void rotate(T* __restrict head, const float* __restrict angles, int64_t half, float sign) {
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = angles[2 * i], sine = sign * angles[2 * i + 1];
    const float x1 = to_float(head[i]), x2 = to_float(head[half + i]);
    head[i] = from_float<T>(x1 * cosine - x2 * sine);
    head[half + i] = from_float<T>(x2 * cosine + x1 * sine);
  }
}

}  // namespace

void rope(const Rope& r) {
  dispatch(r.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const float* table = r.table.as<float>();
    const int64_t seq_len = r.table[0], half = r.table[1], head_size = 2 * half;
    const float sign = r.pass == Pass::kForward ? 1.0f : -1.0f;
    for (int64_t row = 0; row < r.qkv[0]; ++row) {
      T* heads = r.qkv.as<T>() + row * r.qkv[1];
      const float* angles = table + row % seq_len * head_size;
      // A key/value head's slots: its queries, the key, and the value, which is not rotated.
      for (int kv_head = 0; kv_head < r.num_kv_heads; ++kv_head, heads += (r.group + 2) * head_size)
        for (int slot = 0; slot <= r.group; ++slot) rotate(heads + slot * head_size, angles, half, sign);
    }
  });
}

}  // namespace tri::cpu
