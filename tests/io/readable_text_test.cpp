#include "io/base/readable_text.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

TEST(ReadableText, holds_nothing_that_a_terminal_obeys) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(readable_text("a\tb\nc \u00e9 \u20ac \U0001F600"), "a\tb\nc \u00e9 \u20ac \U0001F600");
  EXPECT_EQ(readable_text(std::string_view("\x1b[2J\0\a\x7f\rb", 9)), bad + "[2J" + bad + bad + bad + bad + "b");
  EXPECT_EQ(readable_text("\u009b1m\u00a0"), bad + "1m\u00a0");  // C1: the same as ESC [
  EXPECT_EQ(readable_text("\xff\xc3"), bad + bad);
  EXPECT_EQ(readable_text("\xc0\x80"), bad + bad);            // longer than needed
  EXPECT_EQ(readable_text("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(readable_text("\xf4\x90\x80\x80z"), bad + bad + bad + bad + "z");
  EXPECT_EQ(readable_text(""), "");
}

TEST(ReadableText, of_a_beginning_is_a_beginning_also_where_lines_end_as_on_windows) {
  const std::string text = "a\r\nb\r\r\nc\rd\r\n";
  EXPECT_EQ(readable_text(text),
            "a\nb\xEF\xBF\xBD\nc\xEF\xBF\xBD"
            "d\n");
  for (size_t length = 0; length < text.size(); ++length)
    EXPECT_TRUE(readable_text(text).starts_with(readable_text(text.substr(0, length)))) << length;
}

}  // namespace
}  // namespace tri
