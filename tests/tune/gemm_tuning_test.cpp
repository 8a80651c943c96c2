// Which rank times which GEMM at a start.
#include "lib/tune/gemm_tuning.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

TEST(SearchOwners, ranks_that_lack_the_same_take_turns) {
  EXPECT_EQ(search_owners({"a\nb\nc\nd\ne\n", "a\nb\nc\nd\ne\n"}), "a 0\nb 1\nc 0\nd 1\ne 0\n");
  EXPECT_EQ(search_owners({"a\nb\n", "a\nb\n", "a\nb\n"}), "a 0\nb 1\n") << "more ranks than shapes";
}

TEST(SearchOwners, only_those_that_lack_a_shape_time_it) {
  // Rank 2 has the head, rank 0 the embedding's side, all have the layers'; rank 1 lacks nothing.
  EXPECT_EQ(search_owners({"layer1\nlayer2\n", "", "head\nlayer1\nlayer2\n"}), "head 2\nlayer1 2\nlayer2 0\n");
  EXPECT_EQ(search_owners({"", "", ""}), "");
  EXPECT_EQ(search_owners({"a\nb\n"}), "a 0\nb 0\n");
}

}  // namespace
}  // namespace tri
