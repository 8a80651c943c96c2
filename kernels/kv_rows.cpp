#include "kernels/kv_rows.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

// Checks the heads of qkv and those from `first` on in rows of keys and values of `width` elements.
void check_heads(const char* op, const Tensor& qkv, int64_t width, int first, int num_kv_heads, int group) {
  require_matrix(op, "qkv", qkv);
  TRI_REQUIRE(num_kv_heads > 0 && group > 0 && qkv[1] % (int64_t{num_kv_heads} * (group + 2)) == 0,
              "{}: rows of {} elements are not {} x ({} + 2) heads", op, qkv[1], num_kv_heads, group);
  const int64_t head = 2 * (qkv[1] / (int64_t{num_kv_heads} * (group + 2)));
  TRI_REQUIRE(width > 0 && width % head == 0 && first >= 0 && first + width / head <= num_kv_heads,
              "{}: rows of {} elements are not 2 x {} elements of heads {} to {}", op, width, head / 2, first,
              num_kv_heads);
}

}  // namespace

void check(const PackKv& p) {
  require_matrix("pack_kv", "kv", p.kv);
  check_heads("pack_kv", p.qkv, p.kv[1], p.first_kv_head, p.num_kv_heads, p.group);
  require_tensor("pack_kv", "kv", p.kv, p.qkv.dtype, {p.qkv[0], p.kv[1]});
}

void check(const UnpackKv& u) {
  TRI_REQUIRE(u.parts.dims == 3 && u.parts[0] > 0, "unpack_kv: parts {} is not (P, R, C)", u.parts.shape_text());
  check_heads("unpack_kv", u.qkv, u.parts[2], u.first_kv_head, u.num_kv_heads, u.group);
  require_tensor("unpack_kv", "parts", u.parts, u.qkv.dtype, {u.parts[0], u.qkv[0], u.parts[2]});
}

}  // namespace tri
