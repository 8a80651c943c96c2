#include "kernels/kv_rows.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

// Returns the width of a row of keys and values.
int64_t kv_width(const char* op, const Tensor& qkv, int num_kv_heads, int group) {
  require_matrix(op, "qkv", qkv);
  TRI_REQUIRE(num_kv_heads > 0 && group > 0 && qkv[1] % (int64_t{num_kv_heads} * (group + 2)) == 0,
              "{}: rows of {} elements are not {} x ({} + 2) heads", op, qkv[1], num_kv_heads, group);
  return qkv[1] / (group + 2) * 2;
}

}  // namespace

void check(const PackKv& p) {
  const int64_t width = kv_width("pack_kv", p.qkv, p.num_kv_heads, p.group);
  require_tensor("pack_kv", "kv", p.kv, p.qkv.dtype, {p.qkv[0], width});
}

void check(const UnpackKv& u) {
  const int64_t width = kv_width("unpack_kv", u.qkv, u.num_kv_heads, u.group);
  TRI_REQUIRE(u.parts.dims == 3 && u.parts[0] > 0, "unpack_kv: parts {} is not (P, R, C)", u.parts.shape_text());
  require_tensor("unpack_kv", "parts", u.parts, u.qkv.dtype, {u.parts[0], u.qkv[0], width});
}

}  // namespace tri
