#include "tests/hangs/cuda_stream_task.h"

namespace tri {

bool cuda_run_on_stream(Stream&, const std::function<void()>&) { return false; }
bool cuda_hang_stream(Stream&) { return false; }

}  // namespace tri
