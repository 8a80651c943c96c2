// cached_attention against attention over whole sequences, whose own test compares it with float64: sequences of
// different lengths are appended in passes that mix their rows.
#include "kernels/cached_attention.h"

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

struct Case {
  int kv_heads, group, head_size, window;
  int most_rows;  // of a pass
  std::vector<int> lengths;
  float softcap = 0;

  int64_t width() const { return int64_t{kv_heads} * (group + 2) * head_size; }
  int64_t out_width() const { return int64_t{kv_heads} * group * head_size; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }
};

Values whole_sequence(const Case& c, const Values& qkv, int length, Dtype dtype, QkvOrder order) {
  const Buffer inp(dtype, {length, c.width()}, rows_in(order, qkv, c.kv_heads, c.group, c.head_size));
  const Buffer out(dtype, {length, c.out_width()}), lse(Dtype::kF32, {1, c.kv_heads * c.group, length});
  cpu::attention_forward({.out = out,
                          .lse = lse,
                          .qkv = inp,
                          .order = order,
                          .seq_len = length,
                          .num_kv_heads = c.kv_heads,
                          .group = c.group,
                          .window = c.window,
                          .scale = c.scale(),
                          .softcap = c.softcap});
  return out.values();
}

// Appends all sequences and returns their outputs. Passes take rows of the sequences in turn, a few at a time.
std::vector<Values> in_passes(const Case& c, const std::vector<Values>& qkv, Dtype dtype, QkvOrder order) {
  const int num_sequences = static_cast<int>(c.lengths.size());
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const int slots = c.window == 0 ? longest : std::min(longest, c.window + c.most_rows - 1);
  const Buffer keys(dtype, {num_sequences, slots, c.kv_heads * c.head_size});
  const Buffer values(dtype, {num_sequences, slots, c.kv_heads * c.head_size});
  std::vector<Values> outputs(c.lengths.size());
  std::vector<int> next(c.lengths.size(), 0);
  for (int pass = 0;; ++pass) {
    Values sequences, positions, rows;
    for (size_t turn = 0; turn < c.lengths.size(); ++turn) {
      const size_t s = (turn + static_cast<size_t>(pass)) % c.lengths.size();
      for (int n = 0; n <= pass % 3 && next[s] < c.lengths[s] && std::ssize(sequences) < c.most_rows; ++n, ++next[s]) {
        sequences.push_back(static_cast<double>(s));
        positions.push_back(next[s]);
        const auto row = qkv[s].begin() + next[s] * c.width();
        rows.insert(rows.end(), row, row + c.width());
      }
    }
    if (sequences.empty()) return outputs;
    sequences.push_back(-1);  // padding
    positions.push_back(0);
    rows.resize(rows.size() + static_cast<size_t>(c.width()), 1.0);
    const int64_t count = std::ssize(sequences);
    const Buffer inp(dtype, {count, c.width()}, rows_in(order, rows, c.kv_heads, c.group, c.head_size));
    const Buffer out(dtype, {count, c.out_width()}), of(Dtype::kI32, {count}, sequences),
        at(Dtype::kI32, {count}, positions);
    run_checked(cpu::cached_attention, {.out = out,
                                        .keys = keys,
                                        .values = values,
                                        .qkv = inp,
                                        .sequences = of,
                                        .positions = at,
                                        .order = order,
                                        .num_kv_heads = c.kv_heads,
                                        .group = c.group,
                                        .window = c.window,
                                        .scale = c.scale(),
                                        .softcap = c.softcap});
    const Values results = out.values();
    for (int64_t r = 0; r + 1 < count; ++r) {
      Values& to = outputs[static_cast<size_t>(sequences[static_cast<size_t>(r)])];
      const auto row = results.begin() + r * c.out_width();
      to.insert(to.end(), row, row + c.out_width());
    }
    for (auto at_padding = results.end() - c.out_width(); at_padding != results.end(); ++at_padding)
      EXPECT_EQ(*at_padding, 0);
  }
}

TEST(CachedAttention, is_attention_over_the_whole_sequence) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const QkvOrder order : kOrders)
      for (const Case& c :
           {Case{1, 1, 2, 0, 4, {1}}, Case{1, 3, 5, 0, 4, {7, 1, 12}}, Case{2, 2, 16, 4, 5, {40, 3, 17}},
            Case{3, 1, 33, 1, 2, {9, 9}}, Case{2, 4, 64, 0, 300, {130, 65}}, Case{1, 2, 128, 64, 7, {150}},
            Case{2, 2, 16, 8, 5, {40, 3, 17}, 1.5f}}) {
        SCOPED_TRACE(fmt::format("{} {} NKV {} G {} HS {} W {}", enum_name(dtype), enum_name(order), c.kv_heads,
                                 c.group, c.head_size, c.window));
        std::vector<Values> qkv;
        for (const int length : c.lengths)
          qkv.push_back(random_values(length * c.width(), fmt::format("qkv of {}", qkv.size())));
        const std::vector<Values> outputs = in_passes(c, qkv, dtype, order);
        for (size_t s = 0; s < qkv.size(); ++s)
          expect_close("out", outputs[s], whole_sequence(c, qkv[s], c.lengths[s], dtype, order),
                       dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
      }
}

}  // namespace
}  // namespace tri::test
