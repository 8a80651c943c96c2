// pack_kv and unpack_kv against plain loops over heads.
#include "kernels/kv_rows.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

struct Case {
  int64_t rows;
  int kv_heads, group, head_size;
  int64_t parts;
  int first = 0;  // of the heads in rows of keys and values

  int heads() const { return kv_heads - first; }
  int64_t width() const { return int64_t{kv_heads} * (group + 2) * head_size; }
  int64_t kv_width() const { return int64_t{heads()} * 2 * head_size; }
};
constexpr Case kCases[] = {{1, 1, 1, 1, 1},   {3, 2, 1, 4, 2},    {5, 3, 2, 6, 3},
                           {64, 2, 4, 16, 4}, {5, 3, 2, 6, 3, 1}, {4, 4, 1, 2, 2, 3}};

// The element of a grouped QKV row that is element `i` of its row of keys and values.
int64_t in_grouped(const Case& c, int64_t i) {
  const int64_t head = i / c.head_size, kv_head = c.first + head % c.heads(), slot = c.group + head / c.heads();
  return (kv_head * (c.group + 2) + slot) * c.head_size + i % c.head_size;
}

TEST(KvRows, pack_copies_keys_then_values) {
  for (const Case& c : kCases)
    for (const QkvOrder order : kOrders) {
      const Values grouped = random_values(c.rows * c.width(), "qkv");
      const Buffer qkv(Dtype::kF32, {c.rows, c.width()}, rows_in(order, grouped, c.kv_heads, c.group, c.head_size));
      const Buffer kv(Dtype::kF32, {c.rows, c.kv_width()});
      run_checked(cpu::pack_kv, {.kv = kv,
                                 .qkv = qkv,
                                 .order = order,
                                 .first_kv_head = c.first,
                                 .num_kv_heads = c.kv_heads,
                                 .group = c.group});
      Values expected;
      for (int64_t r = 0; r < c.rows; ++r)
        for (int64_t i = 0; i < c.kv_width(); ++i)
          expected.push_back(grouped[static_cast<size_t>(r * c.width() + in_grouped(c, i))]);
      expect_close("kv", kv.values(), expected);
    }
}

TEST(KvRows, unpack_adds_parts_and_keeps_queries) {
  for (const Case& c : kCases)
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const QkvOrder order : kOrders) {
        Values grouped = random_values(c.rows * c.width(), "qkv");
        const Buffer qkv(dtype, {c.rows, c.width()}, rows_in(order, grouped, c.kv_heads, c.group, c.head_size));
        const Values parts = random_values(c.parts * c.rows * c.kv_width(), "parts");
        const Buffer gathered(dtype, {c.parts, c.rows, c.kv_width()}, parts);
        run_checked(cpu::unpack_kv, {.qkv = qkv,
                                     .parts = gathered,
                                     .order = order,
                                     .first_kv_head = c.first,
                                     .num_kv_heads = c.kv_heads,
                                     .group = c.group});
        for (int64_t r = 0; r < c.rows; ++r)
          for (int64_t i = 0; i < c.kv_width(); ++i) {
            double sum = 0;
            for (int64_t p = 0; p < c.parts; ++p)
              sum += parts[static_cast<size_t>((p * c.rows + r) * c.kv_width() + i)];
            grouped[static_cast<size_t>(r * c.width() + in_grouped(c, i))] = sum;
          }
        expect_close("qkv", qkv.values(), rows_in(order, grouped, c.kv_heads, c.group, c.head_size),
                     dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
      }
}

TEST(KvRows, other_shapes_are_refused) {
  const Buffer qkv(Dtype::kF32, {4, 16}), kv(Dtype::kF32, {4, 8}), parts(Dtype::kF32, {2, 4, 8});
  EXPECT_NO_THROW(check(PackKv{.kv = kv, .qkv = qkv, .num_kv_heads = 1, .group = 2}));
  EXPECT_THROW(check(PackKv{.kv = kv, .qkv = qkv, .num_kv_heads = 1, .group = 3}), Fatal);
  EXPECT_THROW(check(PackKv{.kv = qkv, .qkv = qkv, .num_kv_heads = 1, .group = 2}), Fatal);
  EXPECT_THROW(check(PackKv{.kv = kv, .qkv = qkv, .first_kv_head = 1, .num_kv_heads = 1, .group = 2}), Fatal);
  EXPECT_NO_THROW(check(UnpackKv{.qkv = qkv, .parts = parts, .num_kv_heads = 1, .group = 2}));
  EXPECT_THROW(check(UnpackKv{.qkv = qkv, .parts = kv, .num_kv_heads = 1, .group = 2}), Fatal);
}

}  // namespace
}  // namespace tri::test
