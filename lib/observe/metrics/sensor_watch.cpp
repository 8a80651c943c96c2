#include "lib/observe/metrics/sensor_watch.h"

#include <thread>

#include "io/base/mutex.h"

namespace tri {

using SteadyTime = std::chrono::steady_clock::time_point;

struct SensorWatch::State {
  explicit State(std::chrono::milliseconds between) : period(between) {}

  const std::chrono::milliseconds period;
  Mutex mutex;
  ConditionVariable wake;
  bool ending TRI_GUARDED_BY(mutex) = false, ended TRI_GUARDED_BY(mutex) = false;
  std::optional<GpuSensors> newest TRI_GUARDED_BY(mutex);
  SteadyTime read_at TRI_GUARDED_BY(mutex);
};

SensorWatch::SensorWatch(const std::string& bus_id, std::chrono::milliseconds period)
    : state_(std::make_shared<State>(period)) {
  std::thread([state = state_, bus_id] { run(*state, bus_id); }).detach();
}

SensorWatch::~SensorWatch() {
  constexpr std::chrono::seconds kTimeout{1};
  const MutexLock lock(state_->mutex);
  state_->ending = true;
  state_->wake.notify_all();
  state_->wake.wait_for(state_->mutex, kTimeout, [&]() TRI_REQUIRES(state_->mutex) { return state_->ended; });
}

std::optional<GpuSensors> SensorWatch::newest() const {
  const MutexLock lock(state_->mutex);
  if (!state_->newest || std::chrono::steady_clock::now() - state_->read_at > 10 * state_->period) return std::nullopt;
  return state_->newest;
}

void SensorWatch::run(State& state, const std::string& bus_id) {
  {
    const auto nvml = Nvml::open();
    for (bool ending = !nvml; !ending;) {
      const GpuSensors now = nvml.value()->sensors(bus_id);
      const MutexLock lock(state.mutex);
      if (now.sm_mhz || now.milliwatts || now.memory_bytes) {
        state.newest = now;
        state.read_at = std::chrono::steady_clock::now();
      }
      ending = state.wake.wait_for(state.mutex, state.period, [&]() TRI_REQUIRES(state.mutex) { return state.ending; });
    }
  }  // closes the library
  const MutexLock lock(state.mutex);
  state.ended = true;
  state.wake.notify_all();
}

}  // namespace tri
