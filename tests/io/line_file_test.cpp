// Lines for storage that hangs: a pipe that nobody empties.
#include "io/base/line_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "io/base/file.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using std::chrono::milliseconds;

void no_problem(const std::string& problem) { ADD_FAILURE() << problem; }

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(LineFile, lines_of_all_threads_are_whole_and_follow_what_is_there) {
  const TemporaryFolder folder;
  std::ofstream(folder / "lines") << "first\n";
  {
    const auto file = value_or_throw(LineFile::open(folder / "lines", no_problem));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i)
          file->append(std::string(static_cast<size_t>(50 + t), static_cast<char>('a' + t)) + "\n");
      });
    for (std::thread& thread : threads) thread.join();
  }
  std::istringstream lines(text_of(folder / "lines"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "first");
  int count = 0;
  for (; std::getline(lines, line); ++count)
    EXPECT_EQ(line, std::string(static_cast<size_t>(50 + line.at(0) - 'a'), line.at(0)));
  EXPECT_EQ(count, 400);
}

TEST(LineFile, who_appends_does_not_wait_for_storage_and_nothing_is_lost_when_it_goes_on) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Descriptor end(::open(pipe.c_str(), O_RDWR | O_NONBLOCK));
  ASSERT_GE(end.get(), 0);
  std::string expected;
  std::string got;
  {
    const auto file = value_or_throw(LineFile::open(pipe, no_problem));
    const uint32_t written = line_files_activity().num_written;
    for (int i = 0; i < 20'000; ++i) {  // more than a pipe takes
      const std::string line = fmt::format("line {} of many\n", i);
      expected += line;
      file->append(line);
    }
    EXPECT_FALSE(file->flush(milliseconds(1)));
    EXPECT_TRUE(line_files_activity().pending);
    char bytes[4096];
    while (got.size() < expected.size())
      if (const ssize_t n = ::read(end.get(), bytes, sizeof bytes); n > 0) got.append(bytes, static_cast<size_t>(n));
    EXPECT_TRUE(file->flush());
    EXPECT_FALSE(line_files_activity().pending);
    EXPECT_GT(line_files_activity().num_written, written);
  }
  EXPECT_EQ(got, expected);
}

TEST(LineFile, with_patience_it_leaves_storage_that_hangs_behind) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Descriptor end(::open(pipe.c_str(), O_RDWR | O_NONBLOCK));
  {
    const auto file = value_or_throw(LineFile::open(pipe, no_problem, milliseconds(1)));
    file->append(std::string(1 << 20, 'x') + "\n");
  }
  char bytes[4096];
  for (size_t got = 0; got < (1 << 20) + 1;)  // so that the thread comes to its end
    if (const ssize_t n = ::read(end.get(), bytes, sizeof bytes); n > 0) got += static_cast<size_t>(n);
}

TEST(LineFile, says_what_storage_refuses) {
  std::atomic<int> problems{0};
  std::string what;
  {
    const auto file = value_or_throw(LineFile::open("/dev/full", [&](const std::string& problem) {
      what = problem;
      ++problems;
    }));
    file->append("a line\n");
    EXPECT_TRUE(file->flush());
  }
  EXPECT_EQ(problems, 1);
  EXPECT_EQ(what, "No space left on device");
  EXPECT_FALSE(line_files_activity().pending);
  EXPECT_FALSE(LineFile::open("/nowhere/lines", no_problem));
}

}  // namespace
}  // namespace tri
