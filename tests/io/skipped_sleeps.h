// Sleeps that end at once, so that a test of long pauses takes no time.
#pragma once

#include <chrono>
#include <functional>

namespace tri {

// While it lives, sleeps of this thread call `instead` with their duration and return. One may live in each thread.
class SkippedSleeps {
 public:
  using Instead = std::function<void(std::chrono::milliseconds)>;
  explicit SkippedSleeps(Instead instead);
  ~SkippedSleeps();
  SkippedSleeps(const SkippedSleeps&) = delete;
  SkippedSleeps& operator=(const SkippedSleeps&) = delete;

 private:
  const Instead instead_;
};

}  // namespace tri
