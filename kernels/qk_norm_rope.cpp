#include "kernels/qk_norm_rope.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

// Checks what both passes require of their operands. `rows` is (R, NKVl · (G + 2) · HS).
template <class Op>
void check_shapes(const char* op, const Op& n, const Tensor& rows) {
  require_matrix(op, "inp", n.inp);
  TRI_REQUIRE(n.table.dims == 3 && n.table[0] > 0 && n.table[1] > 0, "{}: table {} is not (T, HS/2, 2)", op,
              n.table.shape_text());
  require_tensor(op, "table", n.table, Dtype::kF32, {n.table[0], n.table[1], 2});
  TRI_REQUIRE(n.eps > 0, "{}: eps is {}, not above 0", op, n.eps);
  const int64_t head_size = 2 * n.table[1];
  TRI_REQUIRE(head_size <= 512, "{}: head size {} exceeds 512", op, head_size);
  TRI_REQUIRE(n.num_kv_heads > 0 && n.group > 0 && n.inp[0] % n.table[0] == 0 &&
                  n.inp[1] == int64_t{n.num_kv_heads} * (n.group + 2) * head_size,
              "{}: inp {} with {} x ({} + 2) heads and table {}", op, n.inp.shape_text(), n.num_kv_heads, n.group,
              n.table.shape_text());
  require_tensor(op, "rows", rows, n.inp.dtype, {n.inp[0], n.inp[1]});
  require_tensor(op, "query_weight", n.query_weight, n.inp.dtype, {head_size});
  require_tensor(op, "key_weight", n.key_weight, n.inp.dtype, {head_size});
}

}  // namespace

void check(const QkNormRopeForward& n) {
  check_shapes("qk_norm_rope_forward", n, n.out);
  TRI_REQUIRE(n.out.data != n.inp.data, "qk_norm_rope_forward: out is inp, which the backward pass needs");
}

void check(const QkNormRopeBackward& n) {
  check_shapes("qk_norm_rope_backward", n, n.dout);
  require_tensor("qk_norm_rope_backward", "dinp", n.dinp, n.inp.dtype, {n.inp[0], n.inp[1]});
  const int64_t head_size = 2 * n.table[1];
  require_tensor("qk_norm_rope_backward", "dquery_weight", n.dquery_weight, Dtype::kF32, {head_size});
  require_tensor("qk_norm_rope_backward", "dkey_weight", n.dkey_weight, Dtype::kF32, {head_size});
  TRI_REQUIRE(n.dinp.data != n.inp.data, "qk_norm_rope_backward: dinp overwrites inp");
  TRI_REQUIRE(n.dinp.data != n.dout.data || n.dinp_order == n.dout_order,
              "qk_norm_rope_backward: dinp is dout, but the orders of heads differ");
}

}  // namespace tri
