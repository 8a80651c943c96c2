#include "kernels/cuda/load.h"

#include <dlfcn.h>

namespace tri::cuda {
namespace {

constexpr int kSmClock = 1;         // NVML_CLOCK_SM
constexpr int kGpuTemperature = 0;  // NVML_TEMPERATURE_GPU

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

// The library stays open to the end of the process.
LoadReader::LoadReader(const std::string& bus_id) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return;
  const auto init = symbol<int (*)()>(library, "nvmlInit_v2");
  const auto find = symbol<int (*)(const char*, void**)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
  void* device = nullptr;
  if (init == nullptr || find == nullptr || init() != 0 || find(bus_id.c_str(), &device) != 0) return;
  clock_ = symbol<AskWhich>(library, "nvmlDeviceGetClockInfo");
  temperature_ = symbol<AskWhich>(library, "nvmlDeviceGetTemperature");
  power_ = symbol<Ask>(library, "nvmlDeviceGetPowerUsage");
  power_limit_ = symbol<Ask>(library, "nvmlDeviceGetEnforcedPowerLimit");
  device_ = device;
}

std::optional<GpuLoad> LoadReader::read() const {
  if (device_ == nullptr || clock_ == nullptr) return std::nullopt;
  unsigned value = 0;
  if (clock_(device_, kSmClock, &value) != 0) return std::nullopt;
  GpuLoad load{.sm_mhz = static_cast<double>(value)};
  if (power_ != nullptr && power_(device_, &value) == 0) load.watts = 1e-3 * value;
  if (power_limit_ != nullptr && power_limit_(device_, &value) == 0) load.watts_limit = 1e-3 * value;
  if (temperature_ != nullptr && temperature_(device_, kGpuTemperature, &value) == 0) load.celsius = value;
  return load;
}

}  // namespace tri::cuda
