// Lines on storage that hangs, simulated by a pipe without a reader.
#include "io/base/line_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "io/base/file.h"
#include "tests/io/forked.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using std::chrono::milliseconds;

void no_problem(const std::string& problem) { ADD_FAILURE() << problem; }

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
  std::istringstream lines(read_all(folder / "lines"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "first");
  int count = 0;
  for (; std::getline(lines, line); ++count)
    EXPECT_EQ(line, std::string(static_cast<size_t>(50 + line.at(0) - 'a'), line.at(0)));
  EXPECT_EQ(count, 400);
}

TEST(LineFile, appends_do_not_wait_for_storage_and_nothing_is_lost_when_it_recovers) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Descriptor end(::open(pipe.c_str(), O_RDWR | O_NONBLOCK));
  ASSERT_GE(end.get(), 0);
  std::string expected;
  std::string got;
  {
    const auto file = value_or_throw(LineFile::open(pipe, no_problem, LineFile::kForever, LineFile::Need::kRequired));
    const uint32_t written = file_writer_activity().num_done;
    for (int i = 0; i < 20'000; ++i) {  // more than a pipe holds
      const std::string line = fmt::format("line {} of many\n", i);
      expected += line;
      file->append(line);
    }
    EXPECT_FALSE(file->flush(milliseconds(1)));
    EXPECT_TRUE(file_writer_activity().pending);
    char bytes[4096];
    while (got.size() < expected.size())
      if (const ssize_t n = ::read(end.get(), bytes, sizeof bytes); n > 0) got.append(bytes, static_cast<size_t>(n));
    EXPECT_TRUE(file->flush());
    EXPECT_FALSE(file_writer_activity().pending);
    EXPECT_GT(file_writer_activity().num_done, written);
  }
  EXPECT_EQ(got, expected);
}

TEST(LineFile, with_a_timeout_it_leaves_storage_that_hangs_behind) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Descriptor end(::open(pipe.c_str(), O_RDWR | O_NONBLOCK));
  {
    const auto file = value_or_throw(LineFile::open(pipe, no_problem, milliseconds(1)));
    file->append(std::string(1 << 20, 'x') + "\n");
  }
  char bytes[4096];
  for (size_t got = 0; got < (1 << 20) + 1;)  // allows the thread to end
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
    for (int i = 0; i < 20; ++i) file->append("a line\n");
    EXPECT_TRUE(file->flush());
  }
  EXPECT_EQ(problems, 1) << "one report, however many writes fail";
  EXPECT_TRUE(what.starts_with("/dev/full: No space left on device")) << what;
  EXPECT_FALSE(file_writer_activity().pending);
  EXPECT_FALSE(LineFile::open("/nowhere/lines", no_problem));
}

// A file with a size limit accepts the first part of a write, like a full disk.
TEST(LineFile, a_line_that_is_cut_short_does_not_join_the_next_one) {
  const TemporaryFolder folder;
  const std::string path = folder / "lines";
  const std::string said = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    std::string reports;
    const auto file =
        value_or_throw(LineFile::open(path, [&](const std::string& message) { reports += message + "\n"; }));
    const auto limit = [](rlim_t bytes) {
      struct rlimit limits {};
      ::getrlimit(RLIMIT_FSIZE, &limits);
      limits.rlim_cur = bytes;
      ::setrlimit(RLIMIT_FSIZE, &limits);
    };
    file->append("first line\n");
    file->flush();
    limit(15);
    for (int i = 0; i < 3; ++i) {
      file->append("second line\n");
      file->flush();
    }
    limit(RLIM_INFINITY);
    file->append("third line\n");
    file->append("fourth line\n");
    file->flush();
    return reports;
  });
  EXPECT_EQ(read_all(path), "first line\nseco\nthird line\nfourth line\n");
  EXPECT_EQ(said, path +
                      ": File too large; the run continues, but writes to this file are lost until they succeed "
                      "again\n" +
                      path + ": writes succeed again; 3 writes were lost\n");
}

TEST(LineFile, what_follows_an_earlier_process_s_torn_line_is_a_line_of_its_own) {
  const TemporaryFolder folder;
  std::ofstream(folder / "lines") << "whole\nhal";
  value_or_throw(LineFile::open(folder / "lines", no_problem))->append("next\n");
  EXPECT_EQ(read_all(folder / "lines"), "whole\nhal\nnext\n");
  std::ofstream(folder / "lines", std::ios::app) << "hal";
  ASSERT_TRUE(append_line(folder / "lines", "last"));
  EXPECT_EQ(read_all(folder / "lines"), "whole\nhal\nnext\nhal\nlast\n");
  const auto refused = append_line("/dev/full", "line");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "/dev/full: No space left on device");
}

}  // namespace
}  // namespace tri
