// Text files and processes of /proc.
#include "io/base/proc.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "io/base/text_file.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(TextFile, is_read_whole_whatever_size_the_kernel_reports) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const std::string text = std::string(100000, 'x') + '\0' + "\nlast";
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(text_of(path), text);
  EXPECT_EQ(first_line_of(path), text.substr(0, 100001));
  EXPECT_NE(text_of("/proc/self/maps").find("[stack]"), std::string::npos);  // stat reports size 0 for this file
}

TEST(TextFile, that_cannot_be_read_is_an_error_with_its_path_or_empty) {
  const TemporaryFolder folder;
  const auto absent = read_text(folder / "absent");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().os_error, ENOENT);
  EXPECT_NE(absent.error().message.find(folder / "absent"), std::string::npos) << absent.error().message;
  const auto a_folder = read_text(folder.path().string());
  ASSERT_FALSE(a_folder.ok());
  EXPECT_EQ(a_folder.error().os_error, EISDIR);
  EXPECT_EQ(text_of(folder / "absent"), "");
  EXPECT_EQ(first_line_of(folder / "absent"), "");
}

TEST(Proc, knows_this_process) {
  const auto stat = process_stat("/proc/self");
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->parent, ::getppid());
  EXPECT_GT(stat->start, 0);
  const auto ids = process_ids();
  EXPECT_NE(std::find(ids.begin(), ids.end(), ::getpid()), ids.end());
  EXPECT_NE(pid_namespace(), 0);
}

TEST(Proc, name_of_a_process_may_contain_anything) {
  const TemporaryFolder folder;
  std::ofstream(folder / "stat") << "12 (a) T (9) b) S 7 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 8912 1 1\n";
  const auto stat = process_stat(folder.path().string());
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->start, 8912);
  EXPECT_DOUBLE_EQ(stat->cpu_seconds, 200.0 / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  EXPECT_FALSE(process_stat(folder / "absent").has_value());
}

TEST(Proc, variable_is_found_by_its_whole_name) {
  const std::string environment = std::string("LONG_NAME=1") + '\0' + "NAME=2" + '\0' + "EMPTY=" + '\0' + "NAME=3";
  EXPECT_EQ(variable_in(environment, "NAME"), "2");
  EXPECT_EQ(variable_in(environment, "EMPTY"), "");
  EXPECT_EQ(variable_in(environment, "NAM"), std::nullopt);
}

}  // namespace
}  // namespace tri
