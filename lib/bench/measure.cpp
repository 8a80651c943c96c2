#include "lib/bench/measure.h"

#include <algorithm>

#include "io/base/random.h"
#include "kernels/core/arena.h"

namespace tri {

double median_seconds(const std::function<void()>& run, int rounds, Device& device, Stream& stream,
                      const std::function<void()>& before) {
  const auto begin = device.make_event(EventKind::kTimed), end = device.make_event(EventKind::kTimed);
  std::vector<double> seconds;
  for (int round = -2; round < rounds; ++round) {
    if (before) before();
    stream.record(*begin);
    run();
    stream.record(*end);
    stream.synchronize();
    if (round >= 0) seconds.push_back(end->seconds_after(*begin));
  }
  return median(std::move(seconds));
}

double device_copy_rate(Device& device, int64_t bytes, int rounds) {
  Arena arena(device, 2 * bytes);
  const auto stream = device.make_stream("bench");
  const Tensor from = arena.take("copy", Dtype::kF32, {bytes / 4}), to = arena.take("copy", Dtype::kF32, {bytes / 4});
  fill_random(from, *stream);
  const double seconds = median_seconds([&] { stream->copy(to.data, from.data, bytes); }, rounds, device, *stream);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

void fill_random(Tensor tensor, Stream& stream, double scale) {
  if (tensor.empty() || tensor.numel() == 0) return;
  const auto count = static_cast<size_t>(std::min<int64_t>(tensor.numel(), 1 << 20));
  std::vector<char> host(count * dtype_bytes(tensor.dtype));
  for (size_t i = 0; i < count; ++i) {
    const auto number = static_cast<float>(scale * (static_cast<double>(random_u64(7, i) >> 11) * 0x1p-52 - 1.0));
    if (tensor.dtype == Dtype::kF32) reinterpret_cast<float*>(host.data())[i] = number;
    if (tensor.dtype == Dtype::kBF16) reinterpret_cast<bf16*>(host.data())[i] = bf16(number);
  }
  char* data = static_cast<char*>(tensor.data);
  const auto first = static_cast<int64_t>(host.size());
  stream.copy(data, host.data(), first);
  for (int64_t done = first; done < tensor.bytes(); done *= 2)
    stream.copy(data + done, data, std::min(done, tensor.bytes() - done));
  stream.synchronize();
}

}  // namespace tri
