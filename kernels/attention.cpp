#include "kernels/attention.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

// What both directions share: grouped QKV rows, one output row a token, one statistic a head and token.
template <class Args>
void check_attention(const char* op, const Args& a) {
  TRI_REQUIRE(a.num_kv_heads > 0 && a.group > 0 && a.seq_len > 0 && a.window >= 0,
              "{}: num_kv_heads {}, group {}, seq_len {}, window {}", op, a.num_kv_heads, a.group, a.seq_len, a.window);
  TRI_REQUIRE(a.scale > 0.0f, "{}: scale {}", op, a.scale);
  require_float(op, "qkv", a.qkv);
  const int64_t num_heads = int64_t{a.num_kv_heads} * a.group;
  const int64_t qkv_heads = int64_t{a.num_kv_heads} * (a.group + 2);
  TRI_REQUIRE(a.qkv.dims == 2 && a.qkv[0] > 0 && a.qkv[0] % a.seq_len == 0,
              "{}: qkv {} is not a number of sequences of {} tokens", op, a.qkv.shape_text(), a.seq_len);
  TRI_REQUIRE(a.qkv[1] > 0 && a.qkv[1] % qkv_heads == 0, "{}: qkv {} does not divide into {} x ({} + 2) heads", op,
              a.qkv.shape_text(), a.num_kv_heads, a.group);
  const int64_t rows = a.qkv[0], head_size = a.qkv[1] / qkv_heads;
  require_tensor(op, "out", a.out, a.qkv.dtype, {rows, num_heads * head_size});
  require_tensor(op, "lse", a.lse, Dtype::kF32, {rows / a.seq_len, num_heads, a.seq_len});
}

}  // namespace

void check(const AttentionForward& a) { check_attention("attention_forward", a); }

void check(const AttentionBackward& a) {
  check_attention("attention_backward", a);
  require_tensor("attention_backward", "dqkv", a.dqkv, a.qkv.dtype, {a.qkv[0], a.qkv[1]});
  require_tensor("attention_backward", "dout", a.dout, a.out.dtype, {a.out[0], a.out[1]});
  require_tensor("attention_backward", "delta", a.delta, Dtype::kF32, {a.lse[0], a.lse[1], a.lse[2]});
  TRI_REQUIRE(a.dqkv.data != a.qkv.data, "attention_backward: dqkv may not be qkv, which later blocks still read");
}

}  // namespace tri
