#include "kernels/rope.h"

#include <cmath>

namespace tri {

void check(const Rope& r) {
  TRI_REQUIRE(r.qkv.dims == 2 && r.table.dims == 3 && r.table[2] == 2 && r.table.dtype == Dtype::kF32,
              "rope of {} with table {}", r.qkv.shape_text(), r.table.shape_text());
  TRI_REQUIRE(r.num_kv_heads > 0 && r.group > 0 && r.qkv[1] == int64_t{r.num_kv_heads} * (r.group + 2) * 2 * r.table[1],
              "rope of {}: {} key/value heads of group {} with table {}", r.qkv.shape_text(), r.num_kv_heads, r.group,
              r.table.shape_text());
}

void fill_rope_table(float* table, int seq_len, int head_size, double theta) {
  const int half = head_size / 2;
  for (int t = 0; t < seq_len; ++t)
    for (int i = 0; i < half; ++i) {
      const double angle = t * std::pow(theta, -2.0 * i / head_size);
      table[(int64_t{t} * half + i) * 2] = static_cast<float>(std::cos(angle));
      table[(int64_t{t} * half + i) * 2 + 1] = static_cast<float>(std::sin(angle));
    }
}

}  // namespace tri
