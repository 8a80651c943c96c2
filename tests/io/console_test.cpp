// What is written to standard output, and what is not.
#include "io/base/console.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/progress.h"
#include "io/base/stderr.h"

namespace tri {
namespace {

// Ends the process with the status that results from printing to `path`.
[[noreturn]] void printed_to(const char* path, const std::function<void()>& print) {
  if (std::freopen(path, "w", stdout) == nullptr) std::_Exit(9);
  print();
  const auto printed = finish_output();
  if (!printed) std::fputs(printed.error().message.c_str(), stderr);
  std::_Exit(printed ? 0 : static_cast<int>(printed.error().code));
}

TEST(ConsoleDeathTest, output_that_a_full_device_does_not_take_is_an_error) {
  const std::string much(1 << 20, 'x');
  for (const auto& print : std::initializer_list<std::function<void()>>{
           [] { print_out("{}\n", 1); }, [&] { print_text(much); }, [] { print_json("{}"); }, [] { print_bytes("x"); },
           [] { std::fputs("by another library", stdout); }}) {
    EXPECT_EXIT(printed_to("/dev/full", print), testing::ExitedWithCode(3), "standard output");
    EXPECT_EXIT(printed_to("/dev/null", print), testing::ExitedWithCode(0), "");
  }
  EXPECT_EXIT(printed_to("/dev/full", [] {}), testing::ExitedWithCode(0), "") << "nothing was printed";
}

TEST(ConsoleDeathTest, a_reader_that_has_left_is_no_error) {
  const auto into_closed_pipe = [] {
    int ends[2];
    if (::pipe(ends) != 0 || ::dup2(ends[1], STDOUT_FILENO) < 0) std::_Exit(9);
    ::close(ends[0]);
    ::close(ends[1]);
    ignore_signal(SIGPIPE);
    print_out("x\n");
    std::_Exit(finish_output() ? 0 : 1);
  };
  EXPECT_EXIT(into_closed_pipe(), testing::ExitedWithCode(0), "");
}

TEST(ConsoleDeathTest, nothing_that_a_terminal_obeys_is_printed) {
  const auto to_stderr = [](const std::function<void()>& print) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    print();
    static_cast<void>(finish_output());
    std::_Exit(0);
  };
  const std::string evil = "\x1b]0;x\x07\xc2\x9b\u202ey";
  EXPECT_EXIT(to_stderr([&] { print_out("{}|\n", evil); }), testing::ExitedWithCode(0),
              "^\xEF\xBF\xBD]0;x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDy\\|");
  EXPECT_EXIT(to_stderr([&] { print_err("{}|\n", evil); }), testing::ExitedWithCode(0),
              "^\xEF\xBF\xBD]0;x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDy\\|");
  EXPECT_EXIT(to_stderr([] { print_json("{\"a\":\"\u009b\u202e\x7f\"}"); }), testing::ExitedWithCode(0),
              "\"a\":\"\\\\u009b\\\\u202e\\\\u007f\"");
}

TEST(Console, a_program_that_is_started_has_default_signals_again) {
  EXPECT_EXIT(
      {
        ignore_signal(SIGPIPE);
        ignore_signal(SIGXFSZ);
        ::execl("/bin/sh", "sh", "-c", "kill -PIPE $$; exit 0", nullptr);
      },
      testing::KilledBySignal(SIGPIPE), "");
}

// A pipe without a reader accepts 64 KiB: a writer that waited would wait for ever.
TEST(StderrDeathTest, lines_do_not_wait_for_a_reader) {
  const auto into_full_pipe = [] {
    int ends[2];
    if (::pipe(ends) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) std::_Exit(9);
    ::close(ends[1]);
    write_stderr_in_background();
    constexpr int kLines = 4000;
    for (int i = 0; i < kLines; ++i) log_line_warn(fmt::format("line {:04} {}", i, std::string(80, '.')));
    ProgressLine().show("progress", true);
    // Nothing is lost once a reader comes: all lines, in order, before what follows them.
    std::thread last([] {
      flush_stderr(std::chrono::hours(1));
      ::close(STDERR_FILENO);
    });
    std::string found(1 << 16, ' '), all;
    for (ssize_t size = 0; (size = ::read(ends[0], found.data(), found.size())) > 0;)
      all.append(found, 0, static_cast<size_t>(size));
    last.join();
    size_t at = 0;
    for (int i = 0; i < kLines; ++i) {
      at = all.find(fmt::format("warning: line {:04} ", i), at);
      if (at == std::string::npos) std::_Exit(1);
    }
    std::_Exit(all.ends_with("\n") ? 0 : 2);
  };
  EXPECT_EXIT(into_full_pipe(), testing::ExitedWithCode(0), "");
}

TEST(StderrDeathTest, the_end_of_a_process_writes_what_is_queued) {
  const auto print_and_end = [] {
    write_stderr_in_background();
    for (int i = 0; i < 100; ++i) print_err("line {}\n", i);
    static_cast<void>(finish_output());
    std::_Exit(0);
  };
  EXPECT_EXIT(print_and_end(), testing::ExitedWithCode(0), "line 0\n.*line 99\n$");
}

}  // namespace
}  // namespace tri
