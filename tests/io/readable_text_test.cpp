#include "io/base/readable_text.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

TEST(ReadableText, holds_nothing_that_a_terminal_obeys) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(readable_text("a\tb\nc \u00e9 \u20ac \U0001F600"), "a\tb\nc \u00e9 \u20ac \U0001F600");
  EXPECT_EQ(readable_text(std::string_view("\x1b[2J\0\a\x7f\rb", 9)), bad + "[2J" + bad + bad + bad + bad + "b");
  EXPECT_EQ(readable_text("\u009b1m\u00a0"), bad + "1m\u00a0");  // C1: equivalent to ESC [
  EXPECT_EQ(readable_text("\xff\xc3"), bad + bad);
  EXPECT_EQ(readable_text("\xc0\x80"), bad + bad);            // overlong
  EXPECT_EQ(readable_text("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(readable_text("\xf4\x90\x80\x80z"), bad + bad + bad + bad + "z");
  EXPECT_EQ(readable_text(""), "");
}

TEST(ReadableText, holds_nothing_that_overrides_the_direction_of_text) {
  for (const std::string evil : {"\u202a", "\u202e", "\u2066", "\u2069"})
    EXPECT_EQ(readable_text("a" + evil + "b"),
              "a\xEF\xBF\xBD"
              "b");
  EXPECT_EQ(readable_text("\u2029\u202f\u2065\u206a \u05d0"), "\u2029\u202f\u2065\u206a \u05d0");
}

TEST(ReadableText, keeps_only_colours_where_it_is_coloured) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(readable_coloured_text("\x1b[38;5;1;48;5;2mx\x1b[0m"), "\x1b[38;5;1;48;5;2mx\x1b[0m");
  EXPECT_EQ(readable_coloured_text("\x1b[2J\x1b]0;m\x1b[?1m\x1b[1"),
            bad + "[2J" + bad + "]0;m" + bad + "[?1m" + bad + "[1");
}

TEST(ReadableText, json_keeps_its_meaning) {
  EXPECT_EQ(readable_json("{\"a\": \"\u00e9\u009b\x7f\u202e\xff\"}"),
            "{\"a\": \"\u00e9\\u009b\\u007f\\u202e\\ufffd\"}");
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
