// The newest values of a GPU's sensors. A thread reads them, since a call of the driver may take long or hang.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "io/nvml/nvml.h"

namespace tri {

class SensorWatch {
 public:
  // Reads the sensors of the GPU at this PCI bus id ("0000:18:00.0") once per `period`; never if the driver's library
  // cannot be loaded.
  explicit SensorWatch(const std::string& bus_id, std::chrono::milliseconds period = std::chrono::seconds(2));
  // Abandons the thread if a call of the driver does not return within a second.
  ~SensorWatch();
  SensorWatch(const SensorWatch&) = delete;
  SensorWatch& operator=(const SensorWatch&) = delete;

  // Returns the newest values; none if there are none of the last ten periods. Safe for concurrent use.
  std::optional<GpuSensors> newest() const;

 private:
  struct State;
  static void run(State& state, const std::string& bus_id);

  std::shared_ptr<State> state_;
};

}  // namespace tri
