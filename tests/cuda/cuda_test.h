// Helpers of the CUDA kernel tests: device copies of host buffers. Every test begins with TRI_NEEDS_GPU().
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {

inline bool gpu_present() {
  int count = 0;
  const bool present = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();  // clears the error "no device", which is an expected answer
  return present;
}

// Skips on a machine without a GPU; fails instead if TRIREME_EXPECT_GPU=1.
#define TRI_NEEDS_GPU()                                                                                    \
  if (!::tri::test::gpu_present()) {                                                                       \
    const char* expected = std::getenv("TRIREME_EXPECT_GPU");                                              \
    if (expected != nullptr && std::string(expected) == "1") FAIL() << "TRIREME_EXPECT_GPU=1, but no GPU"; \
    GTEST_SKIP() << "skipped: no GPU";                                                                     \
  }                                                                                                        \
  static_assert(true)

// The default stream, which the host's copies wait for, on a GPU whose properties a test may change.
class TestStream final : public CudaStream {
 public:
  explicit TestStream(cuda::Context& context) : CudaStream("test", no_ops(), context) {}
  cudaStream_t get() const override { return nullptr; }
  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override { TRI_CUDA(cudaStreamSynchronize(nullptr)); }
  void mark(std::atomic<uint32_t>&, uint32_t) override {}
  void set_flag(uint32_t*, uint32_t) override {}
  void wait_flag(const uint32_t*, uint32_t) override {}
  std::optional<StreamTimes> times() const override { return std::nullopt; }
  void reset_times() override {}

 private:
  void do_copy(void*, const void*, int64_t) override {}
  void do_zero(Tensor) override {}
  static const OpTable& no_ops() {
    static const OpTable table{};
    return table;
  }
};

// Returns the stream that most tests share, on the unchanged first GPU.
inline TestStream& test_stream() {
  static cuda::Context context(cuda::gpu_properties(0));
  static TestStream stream(context);
  return stream;
}

// A copy in device memory of a host buffer's current contents, including poison.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // an absent operand
  explicit DeviceBuffer(const Buffer& host) : tensor_(host) {
    if (tensor_.empty()) return;
    const void* from = tensor_.data;
    TRI_CUDA(cudaMalloc(&tensor_.data, static_cast<size_t>(std::max<int64_t>(tensor_.bytes(), 1))));
    TRI_CUDA(cudaMemcpy(tensor_.data, from, static_cast<size_t>(tensor_.bytes()), cudaMemcpyHostToDevice));
    TRI_CUDA(cudaDeviceSynchronize());  // streams that do not wait for the default stream may read it from now on
  }
  ~DeviceBuffer() {
    if (!tensor_.empty()) cudaFree(tensor_.data);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  operator Tensor() const { return tensor_; }
  // Waits for the device, then copies into `host`, which must have the same shape.
  void download(const Buffer& host) const {
    if (tensor_.empty()) return;
    const Tensor to = host;
    TRI_CUDA(cudaDeviceSynchronize());
    TRI_CUDA(cudaMemcpy(to.data, tensor_.data, static_cast<size_t>(tensor_.bytes()), cudaMemcpyDeviceToHost));
  }
  Values values(const Buffer& shaped_like) const {
    Buffer copy = shaped_like;
    download(copy);
    return copy.values();
  }

 private:
  Tensor tensor_;
};

}  // namespace tri::test
