#include "kernels/cuda_device.h"

namespace tri {

Result<std::vector<std::string>> cuda_devices() {
  return Error{"this trireme was built without CUDA", ExitCode::kDevice};
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  return Error{
      fmt::format("run.device: cuda needs GPU {}, but this trireme was built without CUDA; set run.device: cpu",
                  ordinal),
      ExitCode::kDevice};
}

}  // namespace tri
