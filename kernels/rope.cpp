#include "kernels/rope.h"

#include <cmath>

#include "kernels/core/checks.h"

namespace tri {

void check(const Rope& r) {
  require_matrix("rope", "inp", r.inp);
  require_tensor("rope", "out", r.out, r.inp.dtype, {r.inp[0], r.inp[1]});
  TRI_REQUIRE(r.table.dims == 3 && r.table[0] > 0 && r.table[1] > 0, "rope: table {} is not (T, HS/2, 2)",
              r.table.shape_text());
  require_tensor("rope", "table", r.table, Dtype::kF32, {r.table[0], r.table[1], 2});
  TRI_REQUIRE(r.num_kv_heads > 0 && r.group > 0 && r.inp[0] % r.table[0] == 0 &&
                  r.inp[1] == int64_t{r.num_kv_heads} * (r.group + 2) * 2 * r.table[1],
              "rope: inp {} of {} x ({} + 2) heads with table {}", r.inp.shape_text(), r.num_kv_heads, r.group,
              r.table.shape_text());
  TRI_REQUIRE(r.out.data != r.inp.data || r.out_order == r.inp_order, "rope: in place the order of heads stays");
}

void fill_rope_table(float* table, int seq_len, int head_size, double theta) {
  TRI_REQUIRE(head_size > 0 && head_size % 2 == 0, "rope: head size {} is odd", head_size);
  const int half = head_size / 2;
  for (int i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * i / head_size);
    for (int t = 0; t < seq_len; ++t) {
      float* pair = table + (int64_t{t} * half + i) * 2;
      pair[0] = static_cast<float>(std::cos(t * frequency));
      pair[1] = static_cast<float>(std::sin(t * frequency));
    }
  }
}

}  // namespace tri
