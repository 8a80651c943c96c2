// The arithmetic of bench overlap. Uses no clock.
#include "lib/bench/overlap.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

TEST(Hidden, is_what_the_transfer_does_not_add) {
  EXPECT_EQ(hidden_fraction(4, 10, 10).fraction, 1.0);
  EXPECT_EQ(hidden_fraction(4, 10, 14).fraction, 0.0);
  EXPECT_EQ(hidden_fraction(4, 10, 11).fraction, 0.75);
  for (const double together : {10.0, 11.0, 14.0}) EXPECT_FALSE(hidden_fraction(4, 10, together).clamped);
}

TEST(Hidden, is_kept_within_0_and_1_and_says_so) {
  const Hidden slower = hidden_fraction(4, 10, 18), faster = hidden_fraction(4, 10, 8);
  EXPECT_EQ(slower.raw, -1.0);
  EXPECT_EQ(slower.fraction, 0.0);
  EXPECT_TRUE(slower.clamped);
  EXPECT_EQ(faster.raw, 1.5);
  EXPECT_EQ(faster.fraction, 1.0);
  EXPECT_TRUE(faster.clamped);
}

TEST(Hidden, of_no_transfer_is_nothing) {
  EXPECT_EQ(hidden_fraction(0, 10, 10).fraction, 0.0);
  EXPECT_FALSE(hidden_fraction(0, 10, 10).clamped);
}

}  // namespace
}  // namespace tri
