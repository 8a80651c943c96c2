// Files that take their place at once: what they say when they cannot.
#include "io/base/file.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(AtomicFile, errors_name_the_file_that_was_asked_for) {
  const TemporaryFolder folder;
  const std::string path = folder / "none/x.yaml";
  const auto written = write_file(path, "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message, path + ": No such file or directory");
  const std::string taken = folder.path().string();
  const auto over = write_file(taken, "text");
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().message.find(taken + ": "), 0u) << over.error().message;
}

}  // namespace
}  // namespace tri
