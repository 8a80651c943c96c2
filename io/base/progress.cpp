#include "io/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace tri {

using Clock = std::chrono::steady_clock;

Progress::Progress(std::string what, std::string unit, int64_t total)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(std::max<int64_t>(total, 1)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()) {}

Progress::~Progress() { print(true); }

void Progress::add(int64_t amount) {
  std::lock_guard lock(mutex_);
  done_ += amount;
  const int tenth = static_cast<int>(10 * done_ / total_);
  const bool due = terminal_ ? Clock::now() - last_print_ > std::chrono::milliseconds(100) : tenth > printed_tenth_;
  if (!due || tenth >= 10) return;  // the last line is the destructor's
  printed_tenth_ = tenth;
  last_print_ = Clock::now();
  print(false);
}

void Progress::print(bool final) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double rate = static_cast<double>(done_) / std::max(seconds, 1e-9);
  std::string line = fmt::format("{} {:3.0f} %  {:.1f} M{}/s", what_, 100 * share, rate / 1e6, unit_);
  if (terminal_) {
    constexpr int kWidth = 30;
    const auto filled = static_cast<size_t>(kWidth * share);
    line = fmt::format("\r\033[K[{}{}] {}", std::string(filled, '#'), std::string(kWidth - filled, '.'), line);
  }
  if (!final && share > 0) line += fmt::format("  {:.0f} s left", seconds / share - seconds);
  if (final) line += fmt::format("  {:.1f} s", seconds);
  std::fprintf(stderr, "%s%s", line.c_str(), terminal_ && !final ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace tri
