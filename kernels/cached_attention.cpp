#include "kernels/cached_attention.h"

#include "kernels/core/checks.h"

namespace tri {

void check(const CachedAttention& a) {
  const char* op = "cached_attention";
  TRI_REQUIRE(a.num_kv_heads > 0 && a.group > 0 && a.window >= 0 && a.scale > 0.0f && a.softcap >= 0.0f,
              "{}: num_kv_heads {}, group {}, window {}, scale {}, softcap {}", op, a.num_kv_heads, a.group, a.window,
              a.scale, a.softcap);
  require_matrix(op, "qkv", a.qkv);
  const int64_t heads = int64_t{a.num_kv_heads} * (a.group + 2), rows = a.qkv[0];
  TRI_REQUIRE(rows > 0 && a.qkv[1] > 0 && a.qkv[1] % heads == 0, "{}: qkv {} does not divide into {} x ({} + 2) heads",
              op, a.qkv.shape_text(), a.num_kv_heads, a.group);
  const int64_t head_size = a.qkv[1] / heads;
  TRI_REQUIRE(head_size <= kCachedAttentionMaxHeadSize, "{}: head size {} is above {}", op, head_size,
              kCachedAttentionMaxHeadSize);
  TRI_REQUIRE(a.keys.dims == 3 && a.keys[0] > 0 && a.keys[1] > 0, "{}: keys {} are not (S, P, NKVl · HS)", op,
              a.keys.shape_text());
  for (const auto& [name, cache] : {std::pair{"keys", a.keys}, {"values", a.values}})
    require_tensor(op, name, cache, a.qkv.dtype, {a.keys[0], a.keys[1], a.num_kv_heads * head_size});
  require_tensor(op, "out", a.out, a.qkv.dtype, {rows, a.num_kv_heads * a.group * head_size});
  require_tensor(op, "sequences", a.sequences, Dtype::kI32, {rows});
  require_tensor(op, "positions", a.positions, Dtype::kI32, {rows});
}

}  // namespace tri
