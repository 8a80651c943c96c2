// Rotary position embedding, the reference.  Formulas and shapes: kernels/rope.h.  Bound: memory.
#include "kernels/rope.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Rotates one head by `angles` (HS/2, 2), or back if sign is -1. `to` may be `from`.
template <class T>
void rotate(T* to, const T* from, const float* angles, int64_t half, float sign) {
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = angles[2 * i], sine = sign * angles[2 * i + 1];
    const float x1 = to_float(from[i]), x2 = to_float(from[half + i]);
    to[i] = from_float<T>(x1 * cosine - x2 * sine);
    to[half + i] = from_float<T>(x2 * cosine + x1 * sine);
  }
}

}  // namespace

void rope(const Rope& r) {
  dispatch(r.inp.dtype, [&](auto type) {
    using T = decltype(type);
    const float* table = r.table.as<float>();
    const int64_t seq_len = r.table[0], half = r.table[1];
    const int head_size = static_cast<int>(2 * half);
    const QkvRow to = qkv_row(r.out_order, r.num_kv_heads, r.group, head_size);
    const QkvRow from = qkv_row(r.inp_order, r.num_kv_heads, r.group, head_size);
    const float sign = r.pass == Pass::kForward ? 1.0f : -1.0f;
    for (int64_t row = 0; row < r.inp[0]; ++row) {
      T* out = r.out.as<T>() + row * to.width;
      const T* inp = r.inp.as<T>() + row * from.width;
      const float* angles = table + row % seq_len * head_size;
      for (int kv_head = 0; kv_head < r.num_kv_heads; ++kv_head) {
        for (int g = 0; g < r.group; ++g)
          rotate(out + to.query(kv_head, g), inp + from.query(kv_head, g), angles, half, sign);
        rotate(out + to.key(kv_head), inp + from.key(kv_head), angles, half, sign);
        if (out != inp) std::copy_n(inp + from.value(kv_head), head_size, out + to.value(kv_head));
      }
    }
  });
}

}  // namespace tri::cpu
