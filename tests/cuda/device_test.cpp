// Properties of a GPU's device and streams, compared with those that the driver reports.
#include <cuda.h>

#include <chrono>
#include <cstdio>
#include <set>
#include <thread>

#include "tests/cuda/cuda_test.h"

namespace tri::test {
namespace {

TEST(WaitFlag, flushes_what_peers_wrote_where_the_gpu_can_and_only_there) {
  const unsigned can = cuda::wait_value_flags({.can_flush_remote_writes = true});
  const unsigned cannot = cuda::wait_value_flags({.can_flush_remote_writes = false});
  EXPECT_EQ(can, unsigned{CU_STREAM_WAIT_VALUE_GEQ} | unsigned{CU_STREAM_WAIT_VALUE_FLUSH});
  EXPECT_EQ(cannot, unsigned{CU_STREAM_WAIT_VALUE_GEQ});
}

// A GPU that cannot flush refuses a wait with a flush; a wait with a wrong comparison would end too early.
TEST(WaitFlag, of_a_devices_stream_is_what_the_gpu_can_and_waits_for_the_value) {
  TRI_NEEDS_GPU();
  int can = 0;
  TRI_CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrCanFlushRemoteWrites, 0));
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  const auto waiting = device->make_stream("waiting"), setting = device->make_stream("setting");
  const unsigned flags = cuda::wait_value_flags(cuda_stream(*waiting).context().properties());
  EXPECT_EQ((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0, can != 0);

  void* memory = device->allocate(256);
  auto* flag = static_cast<uint32_t*>(memory);
  setting->zero(Tensor(memory, Dtype::kI32, {64}));
  setting->synchronize();
  const auto passed = device->make_event();
  waiting->wait_flag(flag, 2);
  waiting->record(*passed);
  setting->set_flag(flag, 1);
  setting->synchronize();
  EXPECT_EQ(cudaStreamQuery(cuda_stream(*waiting)), cudaErrorNotReady) << "1 is not 2";
  setting->set_flag(flag, 3);
  waiting->synchronize();
  device->release(memory);
}

// Marks of several streams, in words of mapped memory.
TEST(Marks, reach_host_memory_and_a_stalled_stream_delays_only_its_own) {
  TRI_NEEDS_GPU();
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  std::vector<std::atomic<uint32_t>> words(100);
  words[0] = 7;  // mapping sets no mark
  value_or_throw(device->map_host(words.data(), words.size() * sizeof words[0]));
  EXPECT_EQ(words[0], 7u);
  {
    const auto first = device->make_stream("first"), second = device->make_stream("second");
    const auto mark_all = [&](uint32_t value) {
      for (size_t i = 0; i < words.size(); ++i) (i % 2 == 0 ? first : second)->mark(words[i], value);
      TRI_CUDA(cudaDeviceSynchronize());
      for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], value) << i;
    };
    for (const uint32_t value : {8u, 9u, 0xffffffffU, 0u}) mark_all(value);

    void* memory = device->allocate(256);
    second->zero(Tensor(memory, Dtype::kI32, {64}));
    second->synchronize();
    first->wait_flag(static_cast<uint32_t*>(memory), 1);
    first->mark(words[0], 2);
    second->mark(words[1], 2);
    for (int turn = 0; turn < 2000 && words[1] != 2; ++turn) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(words[1], 2u);
    EXPECT_EQ(words[0], 0u);
    second->set_flag(static_cast<uint32_t*>(memory), 1);
    TRI_CUDA(cudaDeviceSynchronize());
    EXPECT_EQ(words[0], 2u);
    device->release(memory);
  }
  device->unmap_host(words.data());
}

// Processes identify GPUs, and slices of one in MIG mode, by these names, whichever of them is their number 0.
TEST(VisibleGpus, are_named_as_nvidia_smi_names_them) {
  TRI_NEEDS_GPU();
  const auto names = value_or_throw(visible_gpus());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  FILE* list = ::popen("nvidia-smi -L 2>/dev/null | tr -d '-'", "r");  // "(UUID: GPUabc...)", "(UUID: MIGabc...)"
  ASSERT_NE(list, nullptr);
  std::string text;
  for (char part[256]; std::fgets(part, sizeof part, list) != nullptr;) text += part;
  if (::pclose(list) != 0 || text.empty()) GTEST_SKIP() << "no nvidia-smi";
  for (const std::string& name : names) {
    const bool whole = text.find("GPU" + name) != std::string::npos,
               slice = text.find("MIG" + name) != std::string::npos;
    EXPECT_TRUE(whole || slice) << name << " in\n" << text;
    EXPECT_EQ(text.find("GPU" + name + ")\n  MIG"), std::string::npos) << name << " is cut into slices:\n" << text;
  }
}

}  // namespace
}  // namespace tri::test
