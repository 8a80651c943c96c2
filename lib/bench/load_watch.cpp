#include "lib/bench/load_watch.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "io/base/median.h"

namespace tri {

LoadWatch::LoadWatch(Read read, std::chrono::milliseconds between)
    : thread_([this, read = std::move(read), between](const std::stop_token& stop) {
        std::mutex mutex;                  // guards nothing: wait_for needs one
        std::condition_variable_any wake;  // a stop wakes it
        std::unique_lock lock(mutex);
        while (!stop.stop_requested()) {
          const std::optional<GpuLoad> load = read();
          if (!load) return;
          seen_.push_back(*load);
          wake.wait_for(lock, stop, between, [] { return false; });
        }
      }) {}

std::optional<GpuLoad> LoadWatch::finish() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  if (seen_.empty()) return std::nullopt;
  GpuLoad load;
  for (double GpuLoad::*number : {&GpuLoad::sm_mhz, &GpuLoad::watts, &GpuLoad::watts_limit, &GpuLoad::celsius}) {
    std::vector<double> values;
    for (const GpuLoad& seen : seen_) values.push_back(seen.*number);
    load.*number = median(std::move(values));
  }
  return load;
}

}  // namespace tri
