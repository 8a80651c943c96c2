#include "lib/report/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "io/base/readable_text.h"

namespace tri {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";  // use the alternate screen, hide the cursor, do
                                                                     // not wrap
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::string_view kFrameBegin = "\x1b[?2026h\x1b[H";  // terminals that support mode 2026 show the frame when
                                                               // it ends
constexpr std::string_view kFrameEnd = "\x1b[?2026l";
// Clears a line before it is written. The cursor stays on the last column of a line that fills the screen's width, so
// clearing the rest of it afterwards would erase its last character.
constexpr std::string_view kLineBegin = "\x1b[K";
constexpr std::string_view kLineEnd = "\x1b[0m";  // resets colours
constexpr std::string_view kClearBelow = "\r\n\x1b[J";

void send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (done < 0 && errno != EINTR && errno != EAGAIN) return;
    if (done > 0) bytes.remove_prefix(static_cast<size_t>(done));
  }
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}) sigaddset(&set, signal);
  return set;
}

}  // namespace

bool Screen::possible() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO) && kind != nullptr && std::string_view(kind) != "dumb";
}

Screen::Screen() {
  const sigset_t set = watched_signals();
  ::sigprocmask(SIG_BLOCK, &set, &mask_before_);
  signals_ = Descriptor(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  ::tcgetattr(STDIN_FILENO, &before_);
  enter();
}

Screen::~Screen() {
  leave();
  signals_.close();
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void Screen::enter() {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  send(kEnter);
}

void Screen::leave() {
  send(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

ScreenSize Screen::size() const {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0) return {};
  return {.columns = window.ws_col, .lines = window.ws_row};
}

void Screen::show(const std::vector<std::string>& lines) {
  const auto most = static_cast<size_t>(size().lines);
  std::string frame(kFrameBegin);
  for (size_t i = 0; i < lines.size() && i < most; ++i) {
    if (i > 0) frame += "\r\n";
    frame += kLineBegin;
    frame += readable_coloured_text(lines[i]);
    frame += kLineEnd;
  }
  if (lines.size() < most) frame += kClearBelow;
  frame += kFrameEnd;
  send(frame);  // as a single write
}

ScreenEvent Screen::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return ScreenEvent::kTick;
    pollfd ready[] = {{signals_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (::poll(ready, 2, static_cast<int>(left)) <= 0) continue;
    signalfd_siginfo signal{};
    if (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
      const int number = static_cast<int>(signal.ssi_signo);
      if (number == SIGWINCH) return ScreenEvent::kResize;
      if (number == SIGINT || number == SIGQUIT) return ScreenEvent::kQuit;
      leave();
      if (number == SIGTSTP) {
        ::raise(SIGSTOP);
        enter();  // the process was resumed
        return ScreenEvent::kResize;
      }
      ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
      std::signal(number, SIG_DFL);
      ::raise(number);
    }
    if (ready[1].revents & POLLIN) {
      char key = 0;
      const ssize_t got = ::read(STDIN_FILENO, &key, 1);
      if (got == 1 && (key == 'q' || key == 'Q' || key == 4)) return ScreenEvent::kQuit;
      if (got <= 0) return ScreenEvent::kQuit;  // the terminal is gone
      key_ = key;
      return ScreenEvent::kKey;
    } else if (ready[1].revents & (POLLHUP | POLLERR)) {
      return ScreenEvent::kQuit;
    }
  }
}

}  // namespace tri
