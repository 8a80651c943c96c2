// Lines have 120 columns at most. Left out are documents, whose tables are wide, drawings and recordings, which
// programs write, and the scripts of tests/, where a check with the words of its failure is one line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr int kColumns = 120;

// Characters of a line of UTF-8: bytes that begin one.
int columns_of(const std::string& line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_checked(const std::string& file) {
  static constexpr std::array kLeftOut = {".md", ".svg", ".json", ".txt", ".csv", ".pyc"};
  static constexpr std::array kScripts = {".sh", ".py", ".txt", ""};
  const std::string extension = fs::path(file).extension();
  const auto is = [&](const char* one) { return extension == one; };
  if (std::any_of(kLeftOut.begin(), kLeftOut.end(), is) && fs::path(file).filename() != "CMakeLists.txt") return false;
  return !file.starts_with("tests/") || std::none_of(kScripts.begin(), kScripts.end(), is);
}

// "FILE:LINE: 123 columns", of the files in `folders` below `root`, and of the files at the root itself.
std::vector<std::string> too_long(const fs::path& root, const std::vector<std::string>& folders, int& num_files) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(root))
    if (entry.is_regular_file()) files.push_back(entry.path());
  for (const std::string& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(root / folder))
      if (entry.is_regular_file()) files.push_back(entry.path());
  std::vector<std::string> problems;
  num_files = 0;
  for (const fs::path& path : files) {
    const std::string file = fs::relative(path, root).string();
    if (!is_checked(file)) continue;
    ++num_files;
    std::ifstream in(path);
    int number = 0;
    for (std::string line; ++number, std::getline(in, line);)
      if (const int columns = columns_of(line); columns > kColumns)
        problems.push_back(file + ":" + std::to_string(number) + ": " + std::to_string(columns) + " columns");
  }
  return problems;
}

TEST(LineLength, is_120_at_most) {
  int num_files = 0;
  EXPECT_EQ(too_long(TRI_SOURCE_DIR, {".ci", "app", "configs", "io", "kernels", "lib", "slurm", "tests"}, num_files),
            std::vector<std::string>{});
  EXPECT_GT(num_files, 400) << "the sources were not found";
}

TEST(LineLength, counts_characters_of_the_files_that_are_checked) {
  EXPECT_EQ(columns_of("\xE2\x96\x88 caf\xC3\xA9"), 6);
  for (const char* file :
       {"lib/a.h", "lib/report/page/a.js", "slurm/a.sh", "Makefile", "lib/CMakeLists.txt", "tests/a_test.cpp"})
    EXPECT_TRUE(is_checked(file)) << file;
  for (const char* file : {"lib/README.md", "lib/report/pictures/a.svg", "tests/mp/a.sh", "tests/CMakeLists.txt"})
    EXPECT_FALSE(is_checked(file)) << file;
  const fs::path root = fs::path(testing::TempDir()) / ("columns." + std::to_string(::getpid()));
  fs::create_directories(root / "lib");
  std::ofstream(root / "lib/a.h") << std::string(120, 'x') << "\n" << std::string(121, 'x') << "\n";
  int num_files = 0;
  EXPECT_EQ(too_long(root, {"lib"}, num_files), std::vector<std::string>{"lib/a.h:2: 121 columns"});
  fs::remove_all(root);
}

}  // namespace
