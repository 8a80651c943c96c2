// What a GPU's device and streams are asked for, against what the driver says of it.
#include <cuda.h>

#include <cstdio>
#include <set>

#include "kernels/cuda_device.h"
#include "tests/cuda/cuda_test.h"

namespace tri::test {
namespace {

TEST(WaitFlag, flushes_what_peers_wrote_where_the_gpu_can_and_only_there) {
  const unsigned can = cuda::wait_value_flags({.can_flush_remote_writes = true});
  const unsigned cannot = cuda::wait_value_flags({.can_flush_remote_writes = false});
  EXPECT_EQ(can, unsigned{CU_STREAM_WAIT_VALUE_GEQ} | unsigned{CU_STREAM_WAIT_VALUE_FLUSH});
  EXPECT_EQ(cannot, unsigned{CU_STREAM_WAIT_VALUE_GEQ});
}

// A GPU that cannot flush refuses a wait that asks for it; a wait whose comparison were another would end too early.
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

// Marks of several streams, into words that lie anywhere: they are there once they are read, and not before.
TEST(Marks, of_streams_come_into_the_hosts_words_when_they_are_read) {
  TRI_NEEDS_GPU();
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  const auto first = device->make_stream("first"), second = device->make_stream("second"),
             reader = device->make_stream("reader");
  std::vector<std::atomic<uint32_t>> words(100);
  value_or_throw(device->map_host(words.data(), words.size() * sizeof words[0]));
  const auto mark_all = [&](uint32_t value) {
    for (size_t i = 0; i < words.size(); ++i) (i % 2 == 0 ? first : second)->mark(words[i], value);
    first->synchronize();
    second->synchronize();
  };
  words[7] = 50;
  mark_all(3);
  EXPECT_EQ(words[0], 0u);
  read_cuda_marks(*device, *reader);
  for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], i == 7 ? 50u : 3u) << i;
  mark_all(0x80000002U);  // modulo 2^32 that is later than 3 by less than half
  read_cuda_marks(*device, *reader);
  for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], 0x80000002U) << i;
  mark_all(1);  // and 1 is later than that
  read_cuda_marks(*device, *reader);
  for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], 1u) << i;

  // A stream that stands still keeps its marks back, and nobody else's.
  void* memory = device->allocate(256);
  reader->zero(Tensor(memory, Dtype::kI32, {64}));
  reader->synchronize();
  first->wait_flag(static_cast<uint32_t*>(memory), 1);
  first->mark(words[0], 2);
  second->mark(words[1], 2);
  second->synchronize();
  read_cuda_marks(*device, *reader);
  EXPECT_EQ(words[0], 1u);
  EXPECT_EQ(words[1], 2u);
  second->set_flag(static_cast<uint32_t*>(memory), 1);
  first->synchronize();
  device->release(memory);
  device->unmap_host(words.data());
}

// Processes tell GPUs, and slices of one in MIG mode, apart by these names, whatever each of them sees as number 0.
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
