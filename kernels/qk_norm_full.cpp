#include "kernels/qk_norm_full.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

void check_heads(const char* op, const Tensor& inp, int num_kv_heads, int group) {
  require_matrix(op, "inp", inp);
  TRI_REQUIRE(num_kv_heads > 0 && group > 0 && inp[1] % (2 * int64_t{num_kv_heads} * (group + 2)) == 0,
              "{}: inp {} with {} x ({} + 2) heads", op, inp.shape_text(), num_kv_heads, group);
}

void check_sums(const char* op, const char* name, const Tensor& sums, int64_t rows) {
  require_tensor(op, name, sums, Dtype::kF32, {rows, 2});
}

// Checks what the ops with weights and angles require of their operands. `rows` is like inp.
template <class Op>
void check_operands(const char* op, const Op& n, const char* name, const Tensor& rows) {
  check_heads(op, n.inp, n.num_kv_heads, n.group);
  const int64_t head_size = n.inp[1] / (int64_t{n.num_kv_heads} * (n.group + 2)), keys = n.num_kv_heads * head_size;
  TRI_REQUIRE(n.table.dims == 3 && n.table[0] > 0 && n.inp[0] % n.table[0] == 0, "{}: inp {} with table {}", op,
              n.inp.shape_text(), n.table.shape_text());
  require_tensor(op, "table", n.table, Dtype::kF32, {n.table[0], head_size / 2, 2});
  require_tensor(op, name, rows, n.inp.dtype, {n.inp[0], n.inp[1]});
  require_tensor(op, "query_weight", n.query_weight, n.inp.dtype, {n.group * keys});
  require_tensor(op, "key_weight", n.key_weight, n.inp.dtype, {keys});
}

template <class Op>
void check_widths(const char* op, const Op& n) {
  TRI_REQUIRE(n.query_width >= n.query_weight.numel() && n.key_width >= n.key_weight.numel(),
              "{}: widths {} and {} of all ranks, but this rank's are {} and {}", op, n.query_width, n.key_width,
              n.query_weight.numel(), n.key_weight.numel());
}

}  // namespace

void check(const QkNormSquares& n) {
  check_heads("qk_norm_squares", n.inp, n.num_kv_heads, n.group);
  check_sums("qk_norm_squares", "sums", n.sums, n.inp[0]);
}

void check(const QkNormFullForward& n) {
  const char* const op = "qk_norm_full_forward";
  check_operands(op, n, "out", n.out);
  check_widths(op, n);
  check_sums(op, "rstd", n.rstd, n.inp[0]);
  check_sums(op, "squares", n.squares, n.inp[0]);
  TRI_REQUIRE(n.eps > 0, "{}: eps is {}, not above 0", op, n.eps);
  TRI_REQUIRE(n.out.data != n.inp.data, "{}: out is inp, which the backward pass needs", op);
}

void check(const QkNormProducts& n) {
  check_operands("qk_norm_products", n, "dout", n.dout);
  check_sums("qk_norm_products", "sums", n.sums, n.inp[0]);
}

void check(const QkNormFullBackward& n) {
  const char* const op = "qk_norm_full_backward";
  check_operands(op, n, "dout", n.dout);
  check_widths(op, n);
  require_tensor(op, "dinp", n.dinp, n.inp.dtype, {n.inp[0], n.inp[1]});
  require_tensor(op, "dquery_weight", n.dquery_weight, Dtype::kF32, {n.query_weight.numel()});
  require_tensor(op, "dkey_weight", n.dkey_weight, Dtype::kF32, {n.key_weight.numel()});
  check_sums(op, "rstd", n.rstd, n.inp[0]);
  check_sums(op, "products", n.products, n.inp[0]);
  TRI_REQUIRE(n.dinp.data != n.inp.data, "{}: dinp overwrites inp", op);
  TRI_REQUIRE(n.dinp.data != n.dout.data || n.dinp_order == n.dout_order,
              "{}: dinp is dout, but the orders of heads differ", op);
}

}  // namespace tri
