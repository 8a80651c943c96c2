// A GPU's clock, power and temperature, from the driver's management library (NVML), which is opened when first asked
// for: where it is missing, as in some containers, nothing else is.
#pragma once

#include <optional>
#include <string>

#include "kernels/core/gpu.h"

namespace tri::cuda {

class LoadReader {
 public:
  explicit LoadReader(const std::string& bus_id);  // "0000:18:00.0"
  // None where the library or the GPU is not to be had, or does not tell its clock.
  std::optional<GpuLoad> read() const;

 private:
  // A library call that asks a device for one number, with NVML's result (0: success).
  using Ask = int (*)(void* device, unsigned* value);
  using AskWhich = int (*)(void* device, int which, unsigned* value);

  void* device_ = nullptr;
  AskWhich clock_ = nullptr, temperature_ = nullptr;
  Ask power_ = nullptr, power_limit_ = nullptr;
};

}  // namespace tri::cuda
