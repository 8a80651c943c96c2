#include "lib/report/terminal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>

namespace tri {
namespace {

constexpr const char* kRestored = "\x1b[?25h\x1b[?1049l";  // the cursor and the previous screen are restored

// A process on its own terminal.
class OnTerminal {
 public:
  explicit OnTerminal(const std::function<int()>& body) {
    winsize size{.ws_row = 10, .ws_col = 30};
    pid_ = ::forkpty(&master_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::_exit(body());
    }
  }
  ~OnTerminal() {
    if (status_ < 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(master_);
  }

  // Reads until `text` appears; returns false if it does not within five minutes.
  bool sees(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    while (output_.find(text, seen_) == output_.npos) {
      pollfd ready{master_, POLLIN, 0};
      char bytes[4096];
      if (::poll(&ready, 1, 100) > 0) {
        const ssize_t got = ::read(master_, bytes, sizeof bytes);
        if (got <= 0) return false;
        output_.append(bytes, static_cast<size_t>(got));
      }
      if (std::chrono::steady_clock::now() > end) return false;
    }
    seen_ = output_.find(text, seen_) + text.size();
    return true;
  }
  void type(const std::string& keys) { ASSERT_EQ(::write(master_, keys.data(), keys.size()), ssize_t(keys.size())); }
  void resize(unsigned short columns, unsigned short lines) {
    winsize size{.ws_row = lines, .ws_col = columns};
    ::ioctl(master_, TIOCSWINSZ, &size);
  }
  termios settings() const {
    termios now{};
    ::tcgetattr(master_, &now);
    return now;
  }
  pid_t pid() const { return pid_; }
  int wait() {
    ::waitpid(pid_, &status_, 0);
    return status_;
  }
  const std::string& output() const { return output_; }

 private:
  int master_ = -1, status_ = -1;
  pid_t pid_ = 0;
  std::string output_;
  size_t seen_ = 0;
};

// Shows its size and the events until it must end.
int show_events() {
  if (!Screen::possible()) return 3;
  Screen screen;
  for (std::string last = "begin";;) {
    const ScreenSize size = screen.size();
    screen.show({last, "size " + std::to_string(size.columns) + " x " + std::to_string(size.lines)});
    const ScreenEvent event = screen.wait(60);
    if (event == ScreenEvent::kQuit) return 0;
    last = event == ScreenEvent::kResize ? "resized"
           : event == ScreenEvent::kKey  ? std::string("key ") + screen.key()
                                         : "tick";
  }
}

bool echoes(const termios& settings) { return (settings.c_lflag & ECHO) != 0 && (settings.c_lflag & ICANON) != 0; }

TEST(Screen, gives_the_terminal_back_on_q_and_on_control_c) {
  for (const std::string key : {"q", "\x03", "\x04"}) {
    OnTerminal process(show_events);
    ASSERT_TRUE(process.sees("begin"));
    ASSERT_TRUE(process.sees("size 30 x 10"));
    EXPECT_FALSE(echoes(process.settings()));
    process.type("x");
    EXPECT_TRUE(process.sees("key x")) << "any other key is the caller's";
    process.type(key);
    EXPECT_TRUE(process.sees(kRestored));
    const int status = process.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(process.output().find("x\r\n"), std::string::npos) << "keys were echoed";
  }
}

TEST(Screen, gives_the_terminal_back_when_it_is_ended) {
  OnTerminal process(show_events);
  ASSERT_TRUE(process.sees("size 30 x 10"));
  ::kill(process.pid(), SIGTERM);
  EXPECT_TRUE(process.sees(kRestored));
  const int status = process.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(Screen, follows_the_size) {
  OnTerminal process(show_events);
  ASSERT_TRUE(process.sees("size 30 x 10"));
  process.resize(100, 40);
  EXPECT_TRUE(process.sees("resized"));
  EXPECT_TRUE(process.sees("size 100 x 40"));
  process.type("q");
  process.wait();
}

TEST(Screen, is_left_while_the_process_is_stopped) {
  OnTerminal process(show_events);
  ASSERT_TRUE(process.sees("size 30 x 10"));
  ::kill(process.pid(), SIGTSTP);
  EXPECT_TRUE(process.sees(kRestored));
  int status = 0;
  ASSERT_EQ(::waitpid(process.pid(), &status, WUNTRACED), process.pid());
  ASSERT_TRUE(WIFSTOPPED(status)) << status;
  EXPECT_TRUE(echoes(process.settings()));
  ::kill(process.pid(), SIGCONT);
  EXPECT_TRUE(process.sees("resized")) << "redrawn";
  EXPECT_FALSE(echoes(process.settings()));
  process.type("q");
  process.wait();
}

TEST(Screen, draws_a_frame_in_one_piece_and_clears_nothing_before_it) {
  OnTerminal process(show_events);
  ASSERT_TRUE(process.sees("size 30 x 10"));
  process.type("q");
  ASSERT_TRUE(process.sees(kRestored));
  process.wait();
  EXPECT_EQ(process.output().find("\x1b[2J"), std::string::npos) << "a cleared screen flickers";
  const std::string first =
      "\x1b[?2026h\x1b[H\x1b[K"
      "begin";
  const size_t at = process.output().find(first);
  ASSERT_NE(at, std::string::npos);
  const std::string rest = process.output().substr(at + first.size());
  EXPECT_EQ(rest.substr(0, rest.find_first_of("\r\n")).find("\x1b[K"), std::string::npos)
      << "a line as wide as the terminal loses its last column";
}

TEST(Screen, is_not_possible_without_a_terminal) {
  if (::isatty(STDOUT_FILENO) && ::isatty(STDIN_FILENO)) GTEST_SKIP() << "this test runs on a terminal";
  EXPECT_FALSE(Screen::possible());
}

}  // namespace
}  // namespace tri
