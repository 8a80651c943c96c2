#include "lib/observe/metrics/startup.h"

#include "io/base/log.h"

namespace tri {

void StartupClock::phase_done(const std::string& name) {
  const auto now = std::chrono::steady_clock::now();
  phases_.emplace_back(name, std::chrono::duration<double>(now - last_).count());
  last_ = now;
  log_debug("start-up: {} done after {:.3f} s", name, phases_.back().second);
}

std::string StartupClock::report() const {
  double total = 0;
  std::string list;
  for (const auto& [name, seconds] : phases_) {
    total += seconds;
    list += fmt::format("{} {} {:.2f}", list.empty() ? "" : ",", name, seconds);
  }
  return fmt::format("start-up {:.2f} s:{}", total, list);
}

}  // namespace tri
