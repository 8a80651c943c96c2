// Progress of long work: a bar on a terminal, a plain line every ten per cent elsewhere (stderr). Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace tri {

class Progress {
 public:
  Progress(std::string what, std::string unit, int64_t total);
  ~Progress();  // leaves a finished line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(int64_t amount);

 private:
  void print(bool final);

  const std::string what_, unit_;
  const int64_t total_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  int64_t done_ = 0;                                    // guarded by mutex_
  int printed_tenth_ = 0;                               // guarded by mutex_
  std::chrono::steady_clock::time_point last_print_{};  // guarded by mutex_
};

}  // namespace tri
