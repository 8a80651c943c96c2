// QKV rows in either order, implemented without kernels/core/qkv_row.h.
#pragma once

#include "kernels/core/kinds.h"
#include "tests/kernels/op_test.h"

namespace tri::test {

// Returns grouped rows as rows of `order`.
inline Values rows_in(QkvOrder order, const Values& grouped, int kv_heads, int group, int head_size) {
  if (order == QkvOrder::kGrouped) return grouped;
  const size_t width = static_cast<size_t>(kv_heads * (group + 2) * head_size);
  Values rows;
  for (size_t row = 0; row < grouped.size(); row += width) {
    const auto append = [&](int kv_head, int slot) {
      const auto head = grouped.begin() + static_cast<int64_t>(row) + (kv_head * (group + 2) + slot) * head_size;
      rows.insert(rows.end(), head, head + head_size);
    };
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head)
      for (int g = 0; g < group; ++g) append(kv_head, g);
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) append(kv_head, group);
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) append(kv_head, group + 1);
  }
  return rows;
}

constexpr QkvOrder kOrders[] = {QkvOrder::kGrouped, QkvOrder::kByKind};

}  // namespace tri::test
