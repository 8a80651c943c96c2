// The kernels' workspace in a rank's memory: as the device reports or, without a device, that of an H200.
#include <gtest/gtest.h>

#include "kernels/workspace.h"
#include "lib/engine/rank_tensors.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

int64_t workspace_of(const Arena& arena) {
  for (const auto& [name, bytes] : arena.bytes_by_name())
    if (name == "kernel workspace") return bytes;
  return 0;
}

TEST(KernelWorkspace, is_predicted_without_a_gpu) {
  Config config = tiny_config();
  config.run.device = DeviceChoice::kCuda;
  config.precision.compute = Dtype::kBF16;
  config.model.hidden = 256;
  config.model.ffn_hidden = 1024;
  config.model.seq_len = 512;
  config = value_or_throw(resolve_config(config, 1));
  const Mesh mesh = make_mesh(0, {});
  Arena measuring;
  const RankTensors tensors = allocate_rank(config, mesh, measuring);
  const WorkspaceDims dims{.dtype = Dtype::kBF16,
                           .attention = config.model.attention,
                           .batch = config.data.micro_batch,
                           .seq_len = 512,
                           .width = 256,
                           .widest = 1024,
                           .num_kv_heads = 4,
                           .group = 1,
                           .head_size = 64};
  EXPECT_EQ(workspace_of(measuring), workspace_bytes(DeviceKind::kCuda, dims));
  EXPECT_EQ(tensors.kernel_workspace.bytes(), workspace_of(measuring));
  // For another GPU that is not present.
  const GpuProperties a100{.num_multiprocessors = 108, .capability = 80, .has_hopper_attention = false};
  Arena for_a100(a100);
  allocate_rank(config, mesh, for_a100);
  EXPECT_EQ(for_a100.device(), nullptr);
  EXPECT_EQ(workspace_of(for_a100), workspace_bytes(DeviceKind::kCuda, dims, a100));
  EXPECT_NE(workspace_of(for_a100), workspace_of(measuring));
}

TEST(KernelWorkspace, the_cpu_has_none) {
  Config config = tiny_config();
  config.run.device = DeviceChoice::kCpu;
  config = value_or_throw(resolve_config(config, 1));
  const auto device = make_cpu_device();
  Arena without, with(*device);
  for (Arena* arena : {&without, &with}) {
    EXPECT_TRUE(allocate_rank(config, make_mesh(0, {}), *arena).kernel_workspace.empty());
    EXPECT_EQ(workspace_of(*arena), 0);
  }
}

}  // namespace
}  // namespace tri::test
