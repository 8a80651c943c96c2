// Progress on stderr: a bar for a known amount of work, and a line that shows the latest of a series.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "io/base/mutex.h"

namespace tri {

// Shows how much of `total` units is done: a bar on a terminal, elsewhere a plain line every ten per cent, at most once
// per second. Safe for concurrent use.
class ProgressBar {
 public:
  ProgressBar(std::string what, std::string unit, int64_t total);
  ~ProgressBar();  // leaves a finished line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(int64_t amount);

 private:
  void print(bool final) TRI_REQUIRES(mutex_);

  const std::string what_, unit_;
  const int64_t total_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  Mutex mutex_;
  int64_t done_ TRI_GUARDED_BY(mutex_) = 0;
  int printed_tenth_ TRI_GUARDED_BY(mutex_) = 0;
  // At first a terminal's is never, others' start_.
  std::chrono::steady_clock::time_point last_print_ TRI_GUARDED_BY(mutex_);
};

// Shows the latest of a series of texts. On a terminal each overwrites the previous one, unless `keep` makes that a log
// line; elsewhere only kept ones are printed. Not thread-safe.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text, bool keep);

 private:
  const bool terminal_;
  bool open_ = false;  // the terminal's line has text
};

}  // namespace tri
