#include "lib/config/flat.h"

#include <gtest/gtest.h>

#include "lib/config/config.h"
#include "lib/config/fields.h"

namespace tri {
namespace {

using Fields = std::vector<FlatField>;

TEST(FlatConfig, has_every_field_of_a_config_of_this_version) {
  const auto fields = flat_config(to_yaml(Config{}));
  ASSERT_TRUE(fields) << fields.error().message;
  size_t i = 0;
  for (const Section& section : config_sections())
    for (const Field& field : section.fields) {
      ASSERT_LT(i, fields.value().size());
      EXPECT_EQ(fields.value()[i++].name, field.name());
    }
  EXPECT_EQ(i, fields.value().size());
}

TEST(FlatConfig, takes_fields_that_it_does_not_know) {
  const auto fields = flat_config("future: {new: [1, {a: b}], none: }\nplain: 3\n");
  ASSERT_TRUE(fields) << fields.error().message;
  EXPECT_EQ(fields.value(), (Fields{{"future.new", "[1, {a: b}]"}, {"future.none", ""}, {"plain", "3"}}));
}

TEST(FlatConfig, refuses_what_is_no_config) {
  for (const char* text : {"a: [b", "just text", "- a\n- b"}) EXPECT_FALSE(flat_config(text)) << text;
}

TEST(FlatConfig, changes_are_those_of_value_and_those_of_presence) {
  const auto changes =
      flat_changes({{"a", "1"}, {"gone", "2"}, {"same", "3"}}, {{"new", "4"}, {"a", "5"}, {"same", "3"}});
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].name, "new");
  EXPECT_EQ(changes[0].before, "");
  EXPECT_EQ(changes[1].name, "a");
  EXPECT_EQ(changes[1].before, "1");
  EXPECT_EQ(changes[1].after, "5");
  EXPECT_EQ(changes[2].name, "gone");
  EXPECT_EQ(changes[2].after, "");
}

}  // namespace
}  // namespace tri
