#include "io/checkpoint/region.h"

#include <gtest/gtest.h>

#include "tests/io/checkpoint_files.h"

namespace tri {
namespace {

Coordinates random_shape(Draw& draw, int64_t max_dims, int64_t max_size) {
  Coordinates shape(static_cast<size_t>(1 + draw(max_dims)));
  for (int64_t& size : shape) size = 1 + draw(max_size);
  return shape;
}

TEST(Region, copies_what_both_have_and_nothing_else) {
  int copied = 0, disjoint = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    const Coordinates shape = random_shape(draw, 5, 6);
    const int64_t width = 1 << draw(4);
    const Bytes whole = random_bytes(seed, "whole", num_elements(shape) * width);
    const Region from = random_region(shape, draw), to = random_region(shape, draw);
    const Bytes source = cut(whole, shape, from, width), wanted = cut(whole, shape, to, width);
    // A mask shows which bytes of the target are in the source.
    Bytes mask(whole.size(), 0), target(wanted.size(), 0xEE);
    const Bytes ones(source.size(), 1);
    for (size_t i = 0, e = static_cast<size_t>(num_elements(shape)); i < e; ++i) {
      int64_t rest = static_cast<int64_t>(i);
      bool in = true;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
        const int64_t x = rest % shape[d];
        in = in && x >= from.start[d] && x < from.start[d] + from.extent[d];
      }
      if (in) std::fill_n(mask.begin() + static_cast<int64_t>(i) * width, width, 1);
    }
    const Bytes covered = cut(mask, shape, to, width);
    const int64_t count = copy_region(from, source.data(), to, target.data(), width);
    EXPECT_EQ(count * width, std::accumulate(covered.begin(), covered.end(), int64_t{0}));
    for (size_t i = 0; i < target.size(); ++i) ASSERT_EQ(target[i], covered[i] ? wanted[i] : 0xEE) << "seed " << seed;
    EXPECT_EQ(intersect(from, to).has_value(), count > 0);
    ++(count > 0 ? copied : disjoint);
  }
  EXPECT_GT(copied, 300);
  EXPECT_GT(disjoint, 100);
}

TEST(Region, runs_are_as_long_as_they_can_be) {
  const Region common{{2, 0, 0}, {3, 4, 5}}, a{{1, 0, 0}, {4, 4, 5}}, b{{2, 0, 0}, {5, 4, 5}};
  const RunCursor merged(common, a, b);
  EXPECT_EQ(merged.length(), 60);
  EXPECT_EQ(merged.remaining(), 1);
  EXPECT_EQ(merged.a_offset(), 20);
  const RunCursor rows({{2, 0, 1}, {3, 4, 3}}, a, b);
  EXPECT_EQ(rows.length(), 3);
  EXPECT_EQ(rows.remaining(), 12);
}

TEST(Region, flat_ranges_become_few_regions_in_order) {
  size_t most = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    const Coordinates shape = random_shape(draw, 4, 7);
    const int64_t count = num_elements(shape), first = draw(count + 1), last = first + draw(count - first + 1);
    Bytes numbers(static_cast<size_t>(count) * 8);
    for (int64_t i = 0; i < count; ++i) std::memcpy(numbers.data() + i * 8, &i, 8);
    Bytes joined;
    const std::vector<Region> regions = regions_of_range(shape, first, last);
    for (const Region& region : regions) {
      ASSERT_TRUE(inside(region, shape)) << to_string(region) << " of " << to_string(shape);
      const Bytes part = cut(numbers, shape, region, 8);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    most = std::max(most, regions.size());
    EXPECT_LE(regions.size(), 2 * shape.size() - 1);
    EXPECT_EQ(joined, Bytes(numbers.begin() + first * 8, numbers.begin() + last * 8))
        << "[" << first << ", " << last << ") of " << to_string(shape);
  }
  EXPECT_EQ(most, 7u) << "the hard case did not come up";
}

TEST(Region, inside_refuses_what_sticks_out) {
  EXPECT_TRUE(inside({{1, 0}, {2, 4}}, {3, 4}));
  EXPECT_FALSE(inside({{2, 0}, {2, 4}}, {3, 4}));
  EXPECT_FALSE(inside({{-1, 0}, {2, 4}}, {3, 4}));
  EXPECT_FALSE(inside({{0, 0}, {0, 4}}, {3, 4}));
  EXPECT_FALSE(inside({{0}, {2}}, {3, 4}));
  EXPECT_FALSE(inside({{INT64_MAX, 0}, {1, 1}}, {3, 4}));
}

// Any contents of a damaged manifest can be printed.
TEST(Region, in_words_whatever_it_holds) {
  EXPECT_EQ(to_string(Region{{1, 0}, {2, 4}}), "[1:3, 0:4]");
  EXPECT_EQ(to_string(Region{{1, 0}, {2}}), "from [1, 0] of [2]");
  EXPECT_EQ(to_string(Region{{}, {2}}), "from [] of [2]");
}

}  // namespace
}  // namespace tri
