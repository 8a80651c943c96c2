#include "kernels/cuda_device.h"

namespace tri {

int cuda_device_count() { return 0; }

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  return Error{fmt::format("run.device: cuda asks for GPU {}, but this trireme was built without CUDA; set run.device: "
                           "cpu",
                           ordinal),
               ExitCode::kDevice};
}

}  // namespace tri
