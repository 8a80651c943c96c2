#include "kernels/core/device.h"

#include "kernels/core/profile.h"
#include "kernels/cpu/device.h"
#include "kernels/cuda_device.h"

namespace tri {

void Stream::copy(void* dst, const void* src, int64_t bytes) {
  const OpScope scope(*this, "copy");
  do_copy(dst, src, bytes);
}

void Stream::zero(Tensor tensor) {
  const OpScope scope(*this, "zero");
  do_zero(tensor);
}

Result<std::vector<std::string>> visible_gpus() { return cuda_devices(); }

Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int ordinal) {
  if (kind == DeviceKind::kCpu) return make_cpu_device();
  return make_cuda_device(ordinal);
}

}  // namespace tri
