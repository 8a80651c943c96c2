// Keys and values of QKV rows (qkv_row.h) as rows of their own, which context parallelism transfers
// (AttentionForward::kv): the keys of n heads from first_kv_head on, then their values.
//   pack_kv      kv[r] = the keys and values of qkv[r]
//   unpack_kv    the keys and values of qkv[r] = sum_p parts[p][r], in the order of p in fp32, rounded once
#pragma once

#include "kernels/core/kinds.h"
#include "kernels/core/tensor.h"

namespace tri {

struct PackKv {
  Tensor kv;   // (R, n · 2 · HS) T
  Tensor qkv;  // (R, NKVl · (G + 2) · HS) T
  QkvOrder order = QkvOrder::kGrouped;
  int first_kv_head = 0;
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G
};
void check(const PackKv&);

struct UnpackKv {
  Tensor qkv;    // (R, NKVl · (G + 2) · HS) T; queries and other heads keep their values
  Tensor parts;  // (P, R, n · 2 · HS) T
  QkvOrder order = QkvOrder::kGrouped;
  int first_kv_head = 0;
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G
};
void check(const UnpackKv&);

}  // namespace tri
