// The layout of a QKV row's heads, in either order:
//   kGrouped  (NKV, G + 2, HS): for each key/value head its G queries, the key, the value
//   kByKind   all queries, (NH, HS); then all keys, (NKV, HS); then all values
// Letters: dims.h. Kernels use only the offsets and strides of QkvRow, so none branches on the order.
#pragma once

#include "kernels/core/kinds.h"

namespace tri {

// All in elements.
struct QkvRow {
  int head_size;         // HS
  int width;             // NKV · (G + 2) · HS
  int query_stride;      // from the first query of a key/value head to that of the next; its G queries are contiguous
  int key_at, value_at;  // of the first key/value head
  int key_stride;        // from one key to the next, and from one value to the next

  constexpr int query(int kv_head, int g) const { return kv_head * query_stride + g * head_size; }
  constexpr int key(int kv_head) const { return key_at + kv_head * key_stride; }
  constexpr int value(int kv_head) const { return value_at + kv_head * key_stride; }
};

constexpr QkvRow qkv_row(QkvOrder order, int num_kv_heads, int group, int head_size) {
  const int of_group = (group + 2) * head_size, queries = num_kv_heads * group * head_size;
  QkvRow row{.head_size = head_size, .width = num_kv_heads * of_group};
  if (order == QkvOrder::kGrouped) {
    row.query_stride = row.key_stride = of_group;
    row.key_at = group * head_size;
    row.value_at = row.key_at + head_size;
  } else {
    row.query_stride = group * head_size;
    row.key_stride = head_size;
    row.key_at = queries;
    row.value_at = queries + num_kv_heads * head_size;
  }
  return row;
}

// Returns whether a single stride leads from each query head of a row to the next. In grouped rows of several groups
// this holds only within a group.
constexpr bool has_one_query_stride(QkvOrder order, int num_kv_heads, int group) {
  return order == QkvOrder::kByKind || num_kv_heads <= 1 || group == 1;
}

}  // namespace tri
