// Times each phase of the start up to the first step, and reports them once.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "io/base/clock.h"

namespace tri {

class StartupClock {
 public:
  // Ends the phase that began with the previous call, or with the construction of the clock.
  void phase_done(const std::string& name);
  // Returns "start-up 3.2 s: mpi 0.4, data 0.1, communicators 1.2, arena 0.3, first step 1.2".
  std::string report() const;

  double began() const { return began_; }                      // construction of the clock, in seconds since 1970
  double began_monotonic() const { return began_monotonic_; }  // ... in seconds of the monotonic clock
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }  // names and seconds, in order

 private:
  double began_ = process_wall_seconds(), began_monotonic_ = monotonic_seconds();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, double>> phases_;  // name, seconds
};

}  // namespace tri
