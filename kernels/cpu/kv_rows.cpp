// Rows of keys and values, the reference.  Formulas and shapes: kernels/kv_rows.h.  Bound: memory.
#include "kernels/kv_rows.h"

#include <algorithm>

#include "kernels/core/qkv_row.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Calls f(first element of a key or value in its QKV row, the same in its row of keys and values of `width` elements)
// for each head of the latter, which begins with head `first`.
template <class F>
void for_each_head(const QkvRow& row, int first, int64_t width, F f) {
  const int heads = static_cast<int>(width / (2 * row.head_size));
  for (int head = 0; head < heads; ++head) {
    f(row.key(first + head), head * row.head_size);
    f(row.value(first + head), (heads + head) * row.head_size);
  }
}

QkvRow row_of(const Tensor& qkv, QkvOrder order, int num_kv_heads, int group) {
  return qkv_row(order, num_kv_heads, group, static_cast<int>(qkv[1] / (int64_t{num_kv_heads} * (group + 2))));
}

}  // namespace

void pack_kv(const PackKv& p) {
  const QkvRow row = row_of(p.qkv, p.order, p.num_kv_heads, p.group);
  dispatch(p.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t r = 0; r < p.qkv[0]; ++r) {
      const T* from = p.qkv.as<T>() + r * row.width;
      T* to = p.kv.as<T>() + r * p.kv[1];
      for_each_head(row, p.first_kv_head, p.kv[1],
                    [&](int in_qkv, int in_kv) { std::copy_n(from + in_qkv, row.head_size, to + in_kv); });
    }
  });
}

void unpack_kv(const UnpackKv& u) {
  const QkvRow row = row_of(u.qkv, u.order, u.num_kv_heads, u.group);
  const int64_t num_parts = u.parts[0], width = u.parts[2], stride = u.parts[1] * width;
  dispatch(u.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t r = 0; r < u.qkv[0]; ++r) {
      const T* from = u.parts.as<T>() + r * width;
      T* to = u.qkv.as<T>() + r * row.width;
      for_each_head(row, u.first_kv_head, width, [&](int in_qkv, int in_kv) {
        for (int i = 0; i < row.head_size; ++i) {
          float sum = to_float(from[in_kv + i]);
          for (int64_t p = 1; p < num_parts; ++p) sum += to_float(from[p * stride + in_kv + i]);
          to[in_qkv + i] = from_float<T>(sum);
        }
      });
    }
  });
}

}  // namespace tri::cpu
