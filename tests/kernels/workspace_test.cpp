// The kernels chosen for a call and the memory that they need in addition to their operands, decided without a GPU.
#include "kernels/workspace.h"

#include <gtest/gtest.h>

#include "kernels/attention.h"

namespace tri::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
const GpuProperties kH200{};
const GpuProperties kMmaAlone{.has_hopper_attention = false};  // a build without code for sm_90a
const GpuProperties kA100{.num_multiprocessors = 108, .max_shared_bytes = 163 * 1024, .has_cudnn = true};
const GpuProperties kWithoutCudnn{.has_cudnn = false};

AttentionShape shape(Dtype dtype, int seq_len, int group, int64_t head_size, int window = 0) {
  return {
      .dtype = dtype, .seq_len = seq_len, .num_kv_heads = 16, .group = group, .head_size = head_size, .window = window};
}

AttentionPath path(AttentionKernel kernel, Pass pass, const AttentionShape& s, const GpuProperties& gpu = kMmaAlone) {
  return value_or_throw(attention_path(kernel, pass, s, gpu));
}

TEST(AttentionPath, auto_takes_the_fastest_that_takes_the_shape) {
  const auto kAuto = AttentionKernel::kAuto;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 1, 64)), AttentionPath::kCudnn);
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 1, 72)), AttentionPath::kCudnn);
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 1, 64), kWithoutCudnn), AttentionPath::kFlash);
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, 128)), AttentionPath::kCudnn);
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, 80)), AttentionPath::kCudnn);
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, 128), kWithoutCudnn), AttentionPath::kFlash);
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, 80), kWithoutCudnn), AttentionPath::kFlash);
    for (const int64_t head_size : {84, 132, 264})
      EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, head_size)), AttentionPath::kScalar);
    for (const int64_t head_size : {136, 192, 256}) {
      EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, head_size)), AttentionPath::kFlash);
      EXPECT_EQ(path(kAuto, pass, shape(Dtype::kBF16, 1024, 4, head_size), kA100), AttentionPath::kScalar)
          << "too little shared memory";
    }
    EXPECT_EQ(path(kAuto, pass, shape(Dtype::kF32, 1024, 1, 64)), AttentionPath::kScalar);
    EXPECT_EQ(path(AttentionKernel::kBuiltin, pass, shape(Dtype::kBF16, 1024, 1, 96)), AttentionPath::kFlash);
  }
  // With a narrow window cuDNN's backward pass also processes the blocks outside it.
  EXPECT_EQ(path(kAuto, Pass::kForward, shape(Dtype::kBF16, 4096, 1, 128, 1024)), AttentionPath::kCudnn);
  EXPECT_EQ(path(kAuto, Pass::kBackward, shape(Dtype::kBF16, 4096, 1, 128, 1024)), AttentionPath::kFlash);
  EXPECT_EQ(path(kAuto, Pass::kBackward, shape(Dtype::kBF16, 4096, 1, 128, 3000)), AttentionPath::kCudnn);
}

// cuDNN processes grouped heads one sequence at a time: only if one has three 128-query tiles per multiprocessor.
TEST(AttentionPath, grouped_heads_go_to_cudnn_where_a_sequence_fills_the_gpu) {
  const auto grouped = [](int seq_len, int kv_heads, const GpuProperties& gpu = kMmaAlone, int64_t head_size = 128) {
    AttentionShape s = shape(Dtype::kBF16, seq_len, 4, head_size);
    s.num_kv_heads = kv_heads;
    const AttentionPath forward = path(AttentionKernel::kAuto, Pass::kForward, s, gpu);
    EXPECT_EQ(path(AttentionKernel::kAuto, Pass::kBackward, s, gpu), forward);
    return forward;
  };
  EXPECT_EQ(grouped(8192, 8), AttentionPath::kCudnn);
  EXPECT_EQ(grouped(2048, 8), AttentionPath::kCudnn);  // 512 tiles
  EXPECT_EQ(grouped(1536, 8), AttentionPath::kFlash);  // 384, below the 396 that an H200 needs
  EXPECT_EQ(grouped(1536, 8, kA100), AttentionPath::kCudnn);
  EXPECT_EQ(grouped(2048, 2), AttentionPath::kFlash);  // the same model's share with tp 4
  EXPECT_EQ(grouped(8192, 2), AttentionPath::kCudnn);
  EXPECT_EQ(grouped(512, 1), AttentionPath::kCudnn);                 // a single group's sequences run together
  EXPECT_EQ(grouped(512, 8, kMmaAlone, 80), AttentionPath::kCudnn);  // FlashAttention's tiles would be part zeros
  AttentionShape requested = shape(Dtype::kBF16, 512, 4, 128);
  EXPECT_EQ(path(AttentionKernel::kCudnn, Pass::kForward, requested), AttentionPath::kCudnn);
  requested.order = QkvOrder::kByKind;  // sequences are processed together
  EXPECT_EQ(path(AttentionKernel::kAuto, Pass::kForward, requested), AttentionPath::kCudnn);
}

TEST(AttentionPath, auto_takes_hoppers_kernels_where_they_lead) {
  const auto kAuto = AttentionKernel::kAuto;
  const auto on_h200 = [&](Pass pass, int seq_len, int64_t head_size, int window = 0) {
    AttentionShape s = shape(Dtype::kBF16, seq_len, 1, head_size, window);
    s.batch = 8;
    return path(kAuto, pass, s, kH200);
  };
  EXPECT_EQ(on_h200(Pass::kForward, 2048, 128), AttentionPath::kFlash);
  EXPECT_EQ(on_h200(Pass::kForward, 512, 128), AttentionPath::kCudnn);
  EXPECT_EQ(on_h200(Pass::kForward, 8192, 64), AttentionPath::kCudnn);
  EXPECT_EQ(on_h200(Pass::kForward, 4096, 128, 1024), AttentionPath::kFlash);
  for (const int64_t head_size : {64, 96, 128})
    EXPECT_EQ(on_h200(Pass::kBackward, 512, head_size), AttentionPath::kFlash);
  EXPECT_EQ(on_h200(Pass::kBackward, 2048, 80), AttentionPath::kCudnn)
      << "Hopper's kernels do not support the head size";
  AttentionShape few = shape(Dtype::kBF16, 2048, 1, 128);
  EXPECT_EQ(path(kAuto, Pass::kBackward, few, kH200), AttentionPath::kCudnn) << "256 tiles of keys, of 264 wanted";
  few.batch = 2;
  EXPECT_EQ(path(kAuto, Pass::kBackward, few, kH200), AttentionPath::kFlash);
  EXPECT_EQ(path(AttentionKernel::kCudnn, Pass::kBackward, few, kH200), AttentionPath::kCudnn);
  GpuProperties blackwell;
  blackwell.capability = 100;
  EXPECT_EQ(path(kAuto, Pass::kBackward, few, blackwell), AttentionPath::kCudnn);
}

TEST(AttentionPath, flash_kernels_need_their_shared_memory) {
  GpuProperties small = kWithoutCudnn;
  small.max_shared_bytes = 99 * 1024;  // sm_86, sm_89
  EXPECT_EQ(path(AttentionKernel::kAuto, Pass::kForward, shape(Dtype::kBF16, 512, 1, 64), small),
            AttentionPath::kScalar);
  EXPECT_EQ(path(AttentionKernel::kBuiltin, Pass::kForward, shape(Dtype::kBF16, 512, 1, 64), kA100),
            AttentionPath::kFlash);
}

TEST(AttentionPath, what_no_kernel_takes_is_an_error_that_says_why) {
  const auto refused = [](AttentionKernel kernel, Pass pass, const AttentionShape& s, const GpuProperties& gpu,
                          const std::string& part) {
    const auto found = attention_path(kernel, pass, s, gpu);
    ASSERT_FALSE(found) << enum_name(found.value());
    EXPECT_NE(found.error().message.find(part), std::string::npos) << found.error().message;
  };
  const auto kAuto = AttentionKernel::kAuto;
  // The backward pass stores two floats per token in shared memory: T 28,928 on an H200, 20,736 on an A100.
  EXPECT_EQ(path(kAuto, Pass::kBackward, shape(Dtype::kF32, 28928, 1, 64)), AttentionPath::kScalar);
  EXPECT_EQ(path(kAuto, Pass::kBackward, shape(Dtype::kF32, 20736, 1, 64), kA100), AttentionPath::kScalar);
  const std::string h200 = "at most 28928 tokens in a backward pass and 57856 in a forward pass";
  refused(kAuto, Pass::kBackward, shape(Dtype::kF32, 28929, 1, 64), kH200, h200);
  refused(kAuto, Pass::kBackward, shape(Dtype::kF32, 20737, 1, 64), kA100, "at most 20736 tokens in a backward pass");
  EXPECT_EQ(path(kAuto, Pass::kForward, shape(Dtype::kF32, 57856, 1, 64)), AttentionPath::kScalar);
  refused(kAuto, Pass::kForward, shape(Dtype::kF32, 57857, 1, 64), kH200, h200);
  refused(kAuto, Pass::kBackward, shape(Dtype::kBF16, 32768, 4, 264), kH200, "model.seq_len: 32768");
  EXPECT_EQ(path(kAuto, Pass::kForward, shape(Dtype::kF32, 40000, 1, 64)), AttentionPath::kScalar);  // evaluation only
  refused(kAuto, Pass::kForward, shape(Dtype::kF32, 128, 1, 1025), kH200, "head size of 1025");
  refused(AttentionKernel::kCudnn, Pass::kForward, shape(Dtype::kF32, 128, 2, 64), kH200, "set model.attention: auto");
  refused(AttentionKernel::kCudnn, Pass::kForward, shape(Dtype::kBF16, 128, 1, 64), kWithoutCudnn, "without cuDNN");
  AttentionShape capped = shape(Dtype::kBF16, 2048, 1, 128);
  EXPECT_EQ(path(kAuto, Pass::kForward, capped, kMmaAlone), AttentionPath::kCudnn);
  capped.softcap = true;
  EXPECT_EQ(path(kAuto, Pass::kForward, capped, kMmaAlone), AttentionPath::kFlash);
  refused(AttentionKernel::kCudnn, Pass::kForward, capped, kH200, "attention_softcap");
  AttentionShape documents = shape(Dtype::kBF16, 2048, 1, 128), parts = documents;
  documents.documents = true;
  parts.key_len = 4096;
  for (AttentionShape s : {documents, parts})
    for (const int64_t head_size : {8, 72, 80, 112, 128, 256}) {
      s.head_size = head_size;
      EXPECT_EQ(path(kAuto, Pass::kForward, s), AttentionPath::kFlash);
      EXPECT_EQ(path(kAuto, Pass::kBackward, s, kH200), AttentionPath::kFlash);
    }
  refused(AttentionKernel::kCudnn, Pass::kForward, documents, kH200, "data.document_mask");
  refused(AttentionKernel::kCudnn, Pass::kBackward, parts, kH200, "parallel.cp");
}

TEST(AttentionPath, bf16_on_scalar_kernels_is_warned_of) {
  const auto warned = [](const AttentionShape& s, const GpuProperties& gpu = kH200) {
    return !scalar_attention_warning(AttentionKernel::kAuto, s, gpu).empty();
  };
  EXPECT_TRUE(warned(shape(Dtype::kBF16, 512, 1, 65)));
  EXPECT_TRUE(warned(shape(Dtype::kBF16, 512, 2, 264)));
  EXPECT_TRUE(warned(shape(Dtype::kBF16, 512, 2, 256), kA100));
  EXPECT_FALSE(warned(shape(Dtype::kBF16, 512, 2, 256)));
  EXPECT_FALSE(warned(shape(Dtype::kBF16, 512, 2, 80), kWithoutCudnn));
  EXPECT_FALSE(warned(shape(Dtype::kBF16, 512, 1, 80)));
  EXPECT_FALSE(warned(shape(Dtype::kBF16, 512, 2, 128)));
  GpuProperties small = kH200, small_without_cudnn = kWithoutCudnn;
  small.max_shared_bytes = small_without_cudnn.max_shared_bytes = 99 * 1024;
  EXPECT_TRUE(warned(shape(Dtype::kBF16, 512, 2, 80), small_without_cudnn));
  EXPECT_FALSE(warned(shape(Dtype::kBF16, 512, 2, 80), small));
  EXPECT_FALSE(warned(shape(Dtype::kF32, 512, 1, 64))) << "fp32 has no other kernels";
  // The warning names what excludes the faster kernels.
  for (const bool documents : {false, true})
    for (const int key_len : {0, 1024}) {
      AttentionShape s = shape(Dtype::kBF16, 512, 1, 80);
      s.documents = documents;
      s.key_len = key_len;
      const auto says = [&](const char* part, const GpuProperties& gpu) {
        return scalar_attention_warning(AttentionKernel::kAuto, s, gpu).find(part) != std::string::npos;
      };
      EXPECT_FALSE(warned(s));
      EXPECT_EQ(warned(s, small), documents || key_len > 0);
      EXPECT_EQ(says("data.document_mask: false", small), documents);
      EXPECT_EQ(says("parallel.cp: 1", small), key_len > 0);
      EXPECT_FALSE(says("data.document_mask", small_without_cudnn) || says("parallel.cp", small_without_cudnn));
    }
}

WorkspaceDims gpt_13b() {
  return {.dtype = Dtype::kBF16,
          .attention = AttentionKernel::kAuto,
          .batch = 4,
          .seq_len = 2048,
          .width = 5120,
          .widest = 20480,
          .num_kv_heads = 40,
          .group = 1,
          .head_size = 128};
}

TEST(Workspace, the_cpu_needs_none) { EXPECT_EQ(workspace_bytes(DeviceKind::kCpu, gpt_13b()), 0); }

TEST(Workspace, it_holds_the_gemms_and_the_attention_kernels_that_the_dims_lead_to) {
  const auto alongside = [](const WorkspaceDims& d, const GpuProperties& gpu) {
    return workspace_bytes(DeviceKind::kCuda, d, gpu) - kGemmWorkspaceBytes - attention_workspace_bytes(d, gpu);
  };
  WorkspaceDims d = gpt_13b();
  // cuDNN: gradients of the scores of 4 · 40 heads in bf16, 1.25 GiB.
  EXPECT_GE(attention_workspace_bytes(d, kMmaAlone), 1280 * kMiB);
  EXPECT_LE(attention_workspace_bytes(d, kMmaAlone), 1300 * kMiB);
  EXPECT_GE(alongside(d, kH200), 32 * kMiB);
  // Sums of the query gradients in fp32, 160 MiB, and two statistics per row of a head, 2.5 MiB.
  EXPECT_EQ(attention_workspace_bytes(d, kH200), attention_workspace_bytes(d, kWithoutCudnn));
  d.attention = AttentionKernel::kBuiltin;
  EXPECT_GE(attention_workspace_bytes(d, kH200), 162 * kMiB);
  EXPECT_LE(attention_workspace_bytes(d, kH200), 163 * kMiB);
  EXPECT_GE(alongside(d, kH200), 32 * kMiB);
  d.dtype = Dtype::kF32;
  EXPECT_EQ(attention_workspace_bytes(d, kH200), 0);
}

// cuDNN processes grouped rows one sequence at a time, so the batch does not matter; rows of a single group, and rows
// by kind, are processed together.
TEST(Workspace, grouped_rows_need_cudnn_s_workspace_for_one_sequence) {
  WorkspaceDims d = gpt_13b();
  d.num_kv_heads = 8;
  d.group = 5;
  d.batch = 1;
  const int64_t one = cudnn_workspace_bytes(d);
  EXPECT_GE(one, (320 + 80) * kMiB);  // scores' gradients of 40 heads; gradients of keys and values in fp32
  EXPECT_LE(one, (320 + 80 + 10) * kMiB);
  d.batch = 4;
  EXPECT_EQ(cudnn_workspace_bytes(d), one);
  d.order = QkvOrder::kByKind;
  EXPECT_GE(cudnn_workspace_bytes(d), 4 * (320 + 80) * kMiB);
  EXPECT_LE(cudnn_workspace_bytes(d), (4 * (320 + 80) + 10) * kMiB);
  d.order = QkvOrder::kGrouped;
  d.num_kv_heads = 1;
  d.group = 40;
  EXPECT_GE(cudnn_workspace_bytes(d), 4 * (320 + 80) * kMiB);
}

TEST(Workspace, cudnn_takes_as_many_sequences_as_the_bound_allows) {
  // LLaMA 8B: 320 MiB per sequence of 2048, 4.25 GiB per sequence of 8192.
  const auto at_once = [](int seq_len, int64_t batch, int kv_heads = 8, QkvOrder order = QkvOrder::kByKind) {
    const WorkspaceDims d{.dtype = Dtype::kBF16,
                          .batch = batch,
                          .seq_len = seq_len,
                          .num_kv_heads = kv_heads,
                          .group = 4,
                          .order = order,
                          .head_size = 128};
    const int64_t sequences = cudnn_sequences(d);
    if (sequences > 1 && order == QkvOrder::kByKind) {
      EXPECT_LE(cudnn_workspace_bytes(d), kCudnnWorkspaceBytes);
    }
    return sequences;
  };
  EXPECT_EQ(at_once(2048, 1), 1);
  EXPECT_EQ(at_once(2048, 4), 4);
  EXPECT_EQ(at_once(2048, 9), 9);
  EXPECT_EQ(at_once(2048, 10), 5);
  EXPECT_EQ(at_once(2048, 11), 6) << "and five";
  EXPECT_EQ(at_once(4096, 4), 2);
  EXPECT_EQ(at_once(4096, 3), 2) << "and one";
  EXPECT_EQ(at_once(8192, 4), 1);
  EXPECT_EQ(at_once(8192, 4, 2), 2) << "a share of tp 4";
  EXPECT_EQ(at_once(2048, 4, 8, QkvOrder::kGrouped), 1);
  EXPECT_EQ(at_once(8192, 16, 1, QkvOrder::kGrouped), 16) << "one group";
}

// Tiles of 256 columns: their sums, and tables of tiles of 64 keys.
TEST(Workspace, heads_above_128_need_that_of_256) {
  WorkspaceDims d = gpt_13b();
  d.documents = true;
  d.head_size = 256;
  const int64_t whole = flash_workspace_bytes(d);
  EXPECT_GE(whole, 2 * 160 * kMiB);
  d.head_size = 136;
  EXPECT_EQ(flash_workspace_bytes(d), whole);
}

TEST(Workspace, without_a_gpu_an_h200_is_assumed) {
  EXPECT_EQ(workspace_bytes(DeviceKind::kCuda, gpt_13b()), workspace_bytes(DeviceKind::kCuda, gpt_13b(), kH200));
  EXPECT_LT(workspace_bytes(DeviceKind::kCuda, gpt_13b(), kA100),
            workspace_bytes(DeviceKind::kCuda, gpt_13b(), kMmaAlone));
  EXPECT_LT(workspace_bytes(DeviceKind::kCuda, gpt_13b(), kH200),
            workspace_bytes(DeviceKind::kCuda, gpt_13b(), kMmaAlone));
  EXPECT_EQ(workspace_bytes(DeviceKind::kCuda, gpt_13b()) % 256, 0) << "slices of an arena are";
}

}  // namespace
}  // namespace tri::test
