// Files that replace others atomically, and their errors.
#include "io/base/file.h"

#include <gtest/gtest.h>

#include "tests/io/forked.h"
#include "tests/io/temporary_folder.h"
#include "tests/storage/points.h"

namespace tri {
namespace {

TEST(AtomicFile, errors_name_the_requested_file) {
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

// A network file system may report only at close that a quota has truncated a file.
TEST(AtomicFile, a_close_that_fails_leaves_the_file_that_was_there) {
  const TemporaryFolder folder;
  const std::string path = folder / "figures.prom";
  ASSERT_TRUE(write_file(path, "earlier"));
  const std::string said = in_child([&] {
    watch_storage(folder.path().string(), "0/close/1/fail=EDQUOT");
    auto file = value_or_throw(AtomicFile::create(path));
    file.write("later", 5);
    const auto published = file.publish();
    return published ? std::string("published") : published.error().message;
  });
  EXPECT_EQ(said, path + ": closing the file: Disk quota exceeded");
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "earlier");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "no temporary file is left";
}

}  // namespace
}  // namespace tri
