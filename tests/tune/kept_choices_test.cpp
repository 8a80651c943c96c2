// What searches have kept is read again whole, whatever a kill left of the file.
#include "lib/tune/kept_choices.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(KeptChoices, are_found_by_their_whole_key) {
  const std::string text = "tp2:a 1 1\ntp2:ab 2 2\n";
  EXPECT_EQ(kept_choice(text, "tp2:a"), "1 1");
  EXPECT_EQ(kept_choice(text, "tp2:ab"), "2 2");
  EXPECT_EQ(kept_choice(text, "tp2"), "");
  EXPECT_EQ(kept_choice("", "tp2:a"), "");
}

// Cut anywhere, the last line is not read as another choice ("16" as "1"), and does not spoil the line behind it.
TEST(KeptChoices, a_torn_last_line_is_no_choice_and_spoils_none) {
  const std::string first = "tp16:a 4 16\n", text = first + "tp16:b 8 16\n";
  for (size_t size = first.size(); size < text.size(); ++size) {
    const std::string torn = text.substr(0, size);
    EXPECT_EQ(kept_choice(torn, "tp16:a"), "4 16") << torn;
    EXPECT_EQ(kept_choice(torn, "tp16:b"), "") << torn;
    EXPECT_EQ(with_choice(torn, "tp16:b", "8 16"), text) << torn;
  }
  EXPECT_EQ(with_choice(text, "tp16:a", "2 2"), "tp16:b 8 16\ntp16:a 2 2\n") << "in place of the old one";
}

TEST(KeptChoices, only_a_file_that_is_not_there_holds_none) {
  const TemporaryFolder dir;
  write_all(dir / "kept", "tp2:a 1 1\n");
  EXPECT_EQ(value_or_throw(read_choices(dir / "kept")), "tp2:a 1 1\n");
  EXPECT_EQ(value_or_throw(read_choices(dir / "missing")), "");
  EXPECT_FALSE(read_choices(dir.path())) << "it can't be read, so nobody knows what it holds";
}

}  // namespace
}  // namespace tri
