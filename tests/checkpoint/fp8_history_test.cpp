// The FP8 history in a checkpoint, including the form that earlier versions stored.
#include <gtest/gtest.h>

#include <vector>

#include "lib/checkpoint/search.h"

namespace tri {
namespace {

using History = std::vector<float>;

TEST(Fp8History, of_an_earlier_version_is_read_from_its_text) {
  CheckpointInfo info;
  EXPECT_EQ(value_or_throw(fp8_history_of(info)), History{});
  info.texts[kFp8History] = "00000000 3f800000 40490fdb";
  EXPECT_EQ(value_or_throw(fp8_history_of(info)), (History{0, 1, 3.14159274f}));
  info.texts[kFp8History] += " guard 4008000000000000 0 0 -1";
  EXPECT_EQ(value_or_throw(fp8_history_of(info)), (History{0, 1, 3.14159274f}));
  info.lists[kFp8History] = {2};
  EXPECT_EQ(value_or_throw(fp8_history_of(info)), History{2}) << "the list counts";
}

TEST(Fp8History, that_is_not_of_numbers_is_refused) {
  for (const char* text : {"3f800000 x 1", "3f800000,1", "3f8000000000"}) {
    CheckpointInfo info;
    info.texts[kFp8History] = text;
    const auto wrong = fp8_history_of(info);
    ASSERT_FALSE(wrong) << text;
    EXPECT_EQ(wrong.error().code, ExitCode::kFile);
  }
}

}  // namespace
}  // namespace tri
