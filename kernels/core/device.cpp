#include "kernels/core/device.h"

#include "kernels/core/cpu_device.h"
#include "kernels/cuda_device.h"

namespace tri {

Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int ordinal) {
  if (kind == DeviceKind::kCpu) return make_cpu_device();
  return make_cuda_device(ordinal);
}

}  // namespace tri
