#include "kernels/cuda/load.h"

namespace tri::cuda {

LoadReader::LoadReader(const std::string& bus_id) : bus_id_(bus_id) {
  if (auto opened = Nvml::open()) nvml_ = std::move(opened).value();
}

std::optional<GpuLoad> LoadReader::read() const {
  if (!nvml_) return std::nullopt;
  const GpuSensors now = nvml_->sensors(bus_id_);
  if (!now.sm_mhz) return std::nullopt;
  return GpuLoad{.sm_mhz = static_cast<double>(*now.sm_mhz),
                 .watts = 1e-3 * now.milliwatts.value_or(0),
                 .watts_limit = 1e-3 * now.milliwatts_limit.value_or(0),
                 .celsius = static_cast<double>(now.celsius.value_or(0))};
}

}  // namespace tri::cuda
