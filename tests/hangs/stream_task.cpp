#include "tests/hangs/stream_task.h"

#include <unistd.h>

#include <thread>

#include "kernels/cpu/device.h"
#include "tests/hangs/cuda_stream_task.h"

namespace tri {

void run_on_stream(Stream& stream, std::function<void()> task) {
  if (cuda_run_on_stream(stream, task)) return;
  cpu_stream(stream).submit(std::move(task));
}

void idle(Stream& stream, std::chrono::microseconds duration) {
  run_on_stream(stream, [duration] { std::this_thread::sleep_for(duration); });
}

void hang_stream(Stream& stream) {
  if (cuda_hang_stream(stream)) return;
  cpu_stream(stream).submit([] {
    for (;;) ::pause();
  });
}

}  // namespace tri
