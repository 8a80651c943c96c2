// A GPU's clock, power and temperature, read through the driver's management library (io/nvml). If the library is
// missing, as in some containers, these values are not available.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/nvml/nvml.h"
#include "kernels/core/gpu.h"

namespace tri::cuda {

class LoadReader {
 public:
  explicit LoadReader(const std::string& bus_id);  // "0000:18:00.0"
  // Returns nullopt if the library or the GPU cannot be reached, or its clock is unknown.
  std::optional<GpuLoad> read() const;

 private:
  std::string bus_id_;
  std::unique_ptr<Nvml> nvml_;  // null: not available
};

}  // namespace tri::cuda
