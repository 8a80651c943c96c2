#include "io/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/base/file_writer.h"
#include "io/base/host.h"
#include "tests/io/forked.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

// Returns the file's lines without their times, after `rank` has logged at all levels.
std::string file_of(int rank, const std::string& place) {
  const TemporaryFolder folder;
  const std::string said = in_child([&] {
    log_identify(rank, place);
    log_info("too early");
    log_open(folder / "log.txt", "head\n  of two lines");
    log_info("info");
    log_warn("warning");
    log_error("error {}", "{}");
    log_last_words("the end");
    return std::string("all");
  });
  EXPECT_EQ(said, "all");
  std::ifstream file(folder / "log.txt");
  std::string text;
  for (std::string line; std::getline(file, line);) {
    constexpr size_t kTime = sizeof "2026-01-01 00:00:00.000";
    text += (line.starts_with("20") ? line.substr(kTime) : line) + "\n";
  }
  return text;
}

TEST(Log, the_file_has_every_line_of_rank_0_under_a_head) {
  EXPECT_EQ(file_of(0, "pp0 dp0 tp0"), "head\n  of two lines\ninfo\n[pp0 dp0 tp0] warning: warning\n[rank 0 on " +
                                           host_name() + ", pp0 dp0 tp0] error: error {}\nthe end\n");
}

TEST(Log, of_other_ranks_it_has_what_ends_them_with_rank_and_host) {
  EXPECT_EQ(file_of(3, "pp1 dp0 tp3"), "[rank 3 on " + host_name() + ", pp1 dp0 tp3] error: error {}\nthe end\n");
  EXPECT_EQ(file_of(5, ""), "[rank 5 on " + host_name() + "] error: error {}\nthe end\n");
}

// Returns the lines of a file without their times.
std::string lines_of(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  for (std::string line; std::getline(file, line);) text += line.substr(sizeof "2026-01-01 00:00:00.000") + "\n";
  return text;
}

TEST(Log, of_a_level_has_the_lines_of_those_before_it) {
  const std::string warning = "[p] warning: warn\n", error = "[rank 0 on " + host_name() + ", p] error: error\n";
  for (const auto& [level, expected] : {std::pair{LogLevel::kError, error},
                                        {LogLevel::kWarn, warning + error},
                                        {LogLevel::kInfo, "info\n" + warning + error},
                                        {LogLevel::kDebug, "debug\ninfo\n" + warning + error}}) {
    const TemporaryFolder folder;
    in_child([&, level = level] {
      log_identify(0, "p");
      log_set_level(level);
      log_open(folder / "log.txt", "head");
      log_debug("debug");
      log_info("info");
      log_warn("warn");
      log_error("error");
      return std::string();
    });
    EXPECT_EQ(lines_of(folder / "log.txt"), "head\n" + expected) << enum_name(level);
  }
}

TEST(Log, of_a_rank_has_what_others_print_and_warnings_alike_are_printed_by_one) {
  for (const int rank : {0, 1}) {
    const TemporaryFolder folder;
    in_child([&] {
      log_identify(rank, "p");
      log_open(folder / "log.txt", "head");
      log_open_rank(folder / "log/rank.txt");
      log_info("info");
      log_warn_alike("alike");
      return std::string();
    });
    EXPECT_EQ(lines_of(folder / "log/rank.txt"), "info\n[p] warning: alike\n");
    EXPECT_EQ(lines_of(folder / "log.txt"), rank == 0 ? "head\ninfo\n[p] warning: alike\n" : "");
  }
}

TEST(Log, a_file_that_cannot_be_opened_silences_no_error) {
  const TemporaryFolder folder;
  const std::string path = folder / "no folder but a file";
  write_all(path, "");
  EXPECT_EQ(in_child([&] {
              log_identify(3, "");
              log_open(path + "/log.txt", "");
              log_error("error");
              return std::string("went on");
            }),
            "went on");
}

// A pipe without a reader simulates storage that hangs: opening it waits.
TEST(Log, a_file_that_hangs_holds_no_error_back) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "log.txt").c_str(), 0600), 0);
  EXPECT_EQ(in_child([&] {
              log_identify(3, "");
              log_open(folder / "log.txt", "");
              log_error("error");
              return std::string("went on");
            }),
            "went on");
}

// A pipe that is full until it is read.
TEST(Log, rank_0_does_not_wait_for_a_file_that_hangs_and_loses_no_line) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "log.txt").c_str(), 0600), 0);
  EXPECT_EQ(in_child([&] {
              const int end = ::open((folder / "log.txt").c_str(), O_RDWR);
              log_identify(0, "");
              log_open(folder / "log.txt", "head");
              constexpr int kLines = 200;
              for (int i = 0; i < kLines; ++i) log_info("{}", std::string(1000, 'x'));
              if (file_writer_activity().pending) return std::string("checkpoints and the watchdog wait for a log");
              int lines = 0;
              char c = 0;
              while (lines < kLines + 1 && ::read(end, &c, 1) == 1) lines += c == '\n';
              return std::string("went on");
            }),
            "went on");
}

}  // namespace
}  // namespace tri
