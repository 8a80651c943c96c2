#include "io/base/readable_text.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

TEST(ReadableText, holds_nothing_that_a_terminal_obeys) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(readable_text("a\tb\nc \u00e9 \u20ac \U0001F600"), "a\tb\nc \u00e9 \u20ac \U0001F600");
  EXPECT_EQ(readable_text(std::string_view("\x1b[2J\0\a\x7f\r", 8)), bad + "[2J" + bad + bad + bad + bad);
  EXPECT_EQ(readable_text("\u009b1m\u00a0"), bad + "1m\u00a0");  // C1: the same as ESC [
  EXPECT_EQ(readable_text("\xff\xc3"), bad + bad);
  EXPECT_EQ(readable_text("\xc0\x80"), bad + bad);            // longer than needed
  EXPECT_EQ(readable_text("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(readable_text("\xf4\x90\x80\x80z"), bad + bad + bad + bad + "z");
  EXPECT_EQ(readable_text(""), "");
}

}  // namespace
}  // namespace tri
