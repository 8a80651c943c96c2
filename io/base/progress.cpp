#include "io/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "io/base/clock.h"
#include "io/base/console.h"
#include "io/base/log.h"
#include "io/base/stderr.h"

namespace tri {

using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kLineStart = "\r\033[K";  // moves to the start of the terminal's line and clears it

}  // namespace

ProgressBar::ProgressBar(std::string what, std::string unit, int64_t total)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(std::max<int64_t>(total, 1)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_print_(terminal_ ? Clock::time_point{} : start_) {}

ProgressBar::~ProgressBar() {
  const MutexLock lock(mutex_);
  print(true);
}

void ProgressBar::add(int64_t amount) {
  const MutexLock lock(mutex_);
  done_ += amount;
  const int tenth = static_cast<int>(10 * done_ / total_);
  const auto pause = std::chrono::milliseconds(terminal_ ? 100 : 1000);
  const bool due = Clock::now() - last_print_ > pause && (terminal_ || tenth > printed_tenth_);
  if (!due || tenth >= 10) return;  // the destructor prints the last line
  printed_tenth_ = tenth;
  last_print_ = Clock::now();
  print(false);
}

void ProgressBar::print(bool final) {
  if (log_is_quiet()) return;
  const double seconds = seconds_since(start_);
  const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double rate = static_cast<double>(done_) / std::max(seconds, 1e-9);
  const double scale = rate < 1e3 ? 1 : rate < 1e6 ? 1e3 : 1e6;
  const char* prefix = rate < 1e3 ? "" : rate < 1e6 ? "k" : "M";
  std::string line = fmt::format("{} {:3.0f} %  {:.1f} {}{}/s", what_, 100 * share, rate / scale, prefix, unit_);
  if (terminal_) {
    constexpr int kWidth = 30;
    const auto filled = static_cast<size_t>(kWidth * share);
    line = fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(kWidth - filled, '.'), line);
  }
  if (!final && share > 0) line += fmt::format("  {:.0f} s left", seconds / share - seconds);
  if (final) line += fmt::format("  {:.1f} s", seconds);
  if (terminal_) write_stderr(kLineStart);
  print_err("{}{}", line, terminal_ && !final ? "" : "\n");
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1 && !log_is_quiet()) {}

ProgressLine::~ProgressLine() {
  if (open_) write_stderr("\n");
}

void ProgressLine::show(const std::string& text, bool keep) {
  if (terminal_) write_stderr(kLineStart);
  open_ = false;
  if (keep) return log_info("{}", text);
  if (!terminal_) return;
  print_error_text(text);
  open_ = true;
}

}  // namespace tri
