// Every attention kernel against the CPU reference.
#include "kernels/workspace.h"
#include "tests/cuda/op_compare.h"

namespace tri::test {
namespace {

struct Case {
  Dtype dtype = Dtype::kBF16;
  int batch = 2, seq_len = 0, num_kv_heads = 1, group = 1, head_size = 64, window = 0;
  AttentionKernel kernel = AttentionKernel::kAuto;
  bool deterministic = true;

  int64_t rows() const { return int64_t{batch} * seq_len; }
  int64_t num_heads() const { return int64_t{num_kv_heads} * group; }
  int64_t qkv_width() const { return int64_t{num_kv_heads} * (group + 2) * head_size; }
  int64_t out_width() const { return num_heads() * head_size; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }
  std::string text() const {
    return fmt::format("{} B {} T {} heads {} x {} HS {} W {} {}", enum_name(dtype), batch, seq_len, num_kv_heads,
                       group, head_size, window, enum_name(kernel));
  }
  AttentionForward forward(const Place& on) const {
    return {.out = on("out"),
            .lse = on("lse"),
            .qkv = on("qkv"),
            .seq_len = seq_len,
            .num_kv_heads = num_kv_heads,
            .group = group,
            .window = window,
            .scale = scale(),
            .kernel = kernel};
  }
  AttentionBackward backward(const Place& on) const {
    return {.dqkv = on("dqkv"),
            .delta = on("delta"),
            .dout = on("dout"),
            .out = on("out"),
            .lse = on("lse"),
            .qkv = on("qkv"),
            .seq_len = seq_len,
            .num_kv_heads = num_kv_heads,
            .group = group,
            .window = window,
            .scale = scale(),
            .kernel = kernel,
            .deterministic = deterministic};
  }
};

// A head's HS elements of a token are a vector: kernels on tensor cores round probabilities and scores' gradients to
// bf16, which single elements that all but cancel show.
void compare_attention(const Case& c, CudaStream& stream = test_stream()) {
  const bool fp32 = c.dtype == Dtype::kF32;
  const Buffer qkv(c.dtype, {c.rows(), c.qkv_width()}, random_values(c.rows() * c.qkv_width(), "qkv")),
      dout(c.dtype, {c.rows(), c.out_width()}, random_values(c.rows() * c.out_width(), "dout"));
  const Buffer statistic(Dtype::kF32, {c.batch, c.num_heads(), c.seq_len});
  const Operands forward = TRI_COMPARE_ON(
      stream, attention_forward, c.text(),
      (Operands{{"out", Buffer(c.dtype, {c.rows(), c.out_width()})}, {"lse", statistic}, {"qkv", qkv}}),
      ([&](const Place& on) { return c.forward(on); }),
      Comparisons(fp32 ? elements(2e-5) : vectors(2e-2, c.head_size), {{"lse", elements(fp32 ? 2e-5 : 5e-3)}}));
  // Operands in "delta" are each kernel's own business: some keep the sum there, others do not need it.
  const Buffer out = forward[0].second, lse = forward[1].second;
  Comparisons comparisons(fp32 ? elements(5e-5) : vectors(2e-2, c.head_size), {{"lse", same_bits}});
  comparisons.repeats = c.deterministic;
  const DeviceBuffer delta(statistic);
  const Buffer h_delta = statistic;
  const auto backward = [&](const Place& on) {
    Place with_delta = on;
    with_delta.add("delta", h_delta);
    return c.backward(with_delta);
  };
  expect_cuda_matches_cpu(
      c.text(),
      Operands{{"dqkv", Buffer(c.dtype, {c.rows(), c.qkv_width()})},
               {"dout", dout},
               {"out", out},
               {"lse", lse},
               {"qkv", qkv}},
      backward, [](const AttentionBackward& args) { cpu::attention_backward(args); },
      [&](AttentionBackward args, CudaStream& on) {
        args.delta = delta;
        cuda::attention_backward(args, on);
      },
      comparisons, stream);
}

TEST(CudaAttention, scalar_kernels_match_cpu) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const int seq_len : {1, 3, 65, 200})
      for (const auto& [kv, group, head_size] : {std::tuple{1, 1, 1}, {2, 2, 16}, {1, 4, 65}, {2, 1, 80}, {1, 1, 160}})
        for (const int window : {0, 1, 7, 64, seq_len}) {
          if (window > seq_len) continue;
          compare_attention({.dtype = dtype,
                             .seq_len = seq_len,
                             .num_kv_heads = kv,
                             .group = group,
                             .head_size = head_size,
                             .window = window,
                             .kernel = AttentionKernel::kBuiltin});
        }
}

TEST(CudaAttention, flash_kernels_match_cpu) {
  TRI_NEEDS_GPU();
  for (const int head_size : {64, 96, 128})
    for (const auto& [kv, group] : {std::pair{1, 1}, {3, 1}, {2, 2}, {1, 4}})
      for (const int seq_len : {1, 63, 128, 200, 515})
        for (const int window : {0, 1, 50, 64, 130, 300}) {
          if (window > seq_len) continue;
          compare_attention({.seq_len = seq_len,
                             .num_kv_heads = kv,
                             .group = group,
                             .head_size = head_size,
                             .window = window,
                             .kernel = AttentionKernel::kBuiltin});
        }
}

// More pairs of sequence and key/value head than the backward kernel works on at once (32), in sections that are equal
// (64, 36) and not (33, 35).
TEST(CudaAttention, flash_kernels_match_cpu_with_many_heads) {
  TRI_NEEDS_GPU();
  for (const int head_size : {64, 128})
    for (const auto& [batch, kv, group] : {std::tuple{11, 3, 1}, {5, 7, 2}, {9, 4, 1}, {4, 16, 1}})
      for (const int window : {0, 100})
        compare_attention({.batch = batch,
                           .seq_len = 260,
                           .num_kv_heads = kv,
                           .group = group,
                           .head_size = head_size,
                           .window = window,
                           .kernel = AttentionKernel::kBuiltin});
}

TEST(CudaAttention, cudnn_matches_cpu) {
  TRI_NEEDS_GPU();
  if (!cuda::built_with_cudnn()) GTEST_SKIP() << "skipped: built without cuDNN";
  for (const int seq_len : {64, 128, 200, 512})
    for (const int head_size : {64, 96, 128})
      for (const int window : {0, 1, 50, 64})
        compare_attention({.seq_len = seq_len,
                           .num_kv_heads = 3,
                           .head_size = head_size,
                           .window = window,
                           .kernel = AttentionKernel::kCudnn});
}

// Several groups go through cuDNN a sequence at a time, a single one in whole batches.
TEST(CudaAttention, cudnn_matches_cpu_with_grouped_heads) {
  TRI_NEEDS_GPU();
  if (!cuda::built_with_cudnn()) GTEST_SKIP() << "skipped: built without cuDNN";
  for (const auto& [kv, group] : {std::pair{3, 4}, {2, 2}, {1, 8}})
    for (const int seq_len : {128, 200, 384})
      for (const auto& [head_size, window] : {std::pair{64, 0}, {64, 50}, {96, 0}, {128, 0}, {128, 64}})
        compare_attention({.batch = 3,
                           .seq_len = seq_len,
                           .num_kv_heads = kv,
                           .group = group,
                           .head_size = head_size,
                           .window = window,
                           .kernel = AttentionKernel::kCudnn});
}

// run.deterministic: false. Our own kernels take no notice of it.
TEST(CudaAttention, backward_in_any_order_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const AttentionKernel kernel : {AttentionKernel::kAuto, AttentionKernel::kBuiltin})
    for (const auto& [kv, group] : {std::pair{3, 1}, {2, 4}, {1, 8}})
      for (const auto& [seq_len, head_size] : {std::pair{128, 64}, {515, 128}})
        compare_attention({.batch = 3,
                           .seq_len = seq_len,
                           .num_kv_heads = kv,
                           .group = group,
                           .head_size = head_size,
                           .kernel = kernel,
                           .deterministic = false});
}

// Whatever cuDNN makes of a shape: where it refuses the graph, and in a build without it, another path takes the call.
TEST(CudaAttention, auto_takes_every_shape) {
  TRI_NEEDS_GPU();
  GpuProperties gpu = cuda::gpu_properties(0);
  gpu.has_cudnn = true;
  cuda::Context context(gpu);
  TestStream stream(context);
  for (const auto& [head_size, group] :
       {std::pair{1, 1}, {8, 1}, {24, 3}, {64, 1}, {72, 1}, {72, 3}, {128, 1}, {128, 3}, {136, 1}})
    for (const int seq_len : {1, 7, 33, 130})
      for (const int window : {0, 5}) {
        if (window > seq_len) continue;
        compare_attention(
            {.seq_len = seq_len, .num_kv_heads = 2, .group = group, .head_size = head_size, .window = window}, stream);
      }
}

TEST(CudaAttention, a_sequence_too_long_for_the_scalar_kernels_is_refused) {
  TRI_NEEDS_GPU();
  const int seq_len = 40000;
  const Buffer qkv(Dtype::kF32, {seq_len, 3}), out(Dtype::kF32, {seq_len, 1}), lse(Dtype::kF32, {1, 1, seq_len});
  const DeviceBuffer d_qkv(qkv), d_out(out), d_lse(lse), d_dqkv(qkv);
  const AttentionBackward args{.dqkv = d_dqkv,
                               .delta = d_lse,
                               .dout = d_out,
                               .out = d_out,
                               .lse = d_lse,
                               .qkv = d_qkv,
                               .seq_len = seq_len,
                               .num_kv_heads = 1,
                               .group = 1,
                               .scale = 1.0f};
  try {
    cuda::attention_backward(args, test_stream());
    FAIL() << "taken";
  } catch (const Fatal& fatal) {
    EXPECT_NE(std::string(fatal.what()).find("model.seq_len: 40000"), std::string::npos) << fatal.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// What cuDNN's graphs ask for is inside the bound that the arena reserves.
TEST(CudaAttention, cudnn_workspace_is_within_its_bound) {
  TRI_NEEDS_GPU();
  if (!cuda::built_with_cudnn()) GTEST_SKIP() << "skipped: built without cuDNN";
  cuda::CudnnAttention& cudnn = test_stream().context().cudnn();
  for (const int head_size : {64, 128})
    for (const auto& [batch, heads, group, seq_len] : {std::tuple{1, 1, 1, 64},
                                                       {2, 3, 1, 200},
                                                       {3, 5, 1, 1000},
                                                       {16, 12, 1, 1024},
                                                       {4, 40, 1, 2048},
                                                       {2, 96, 1, 2048},
                                                       {1, 8, 1, 8192},
                                                       {3, 2, 3, 200},
                                                       {4, 8, 4, 2048},
                                                       {2, 1, 8, 4096},
                                                       {1, 8, 4, 8192}})
      for (const int window : {0, 512}) {
        if (window > seq_len) continue;
        const Case c{.batch = batch,
                     .seq_len = seq_len,
                     .num_kv_heads = heads,
                     .group = group,
                     .head_size = head_size,
                     .window = window};
        SCOPED_TRACE(c.text());
        // Only shapes are looked at.
        void* const nowhere = reinterpret_cast<void*>(uintptr_t{1} << 40);
        const Tensor qkv(nowhere, c.dtype, {c.rows(), c.qkv_width()}), out(nowhere, c.dtype, {c.rows(), c.out_width()});
        const Tensor lse(nowhere, Dtype::kF32, {c.batch, c.num_heads(), c.seq_len});
        Place on;
        for (const char* name : {"qkv", "dqkv"}) on.add(name, qkv);
        for (const char* name : {"out", "dout"}) on.add(name, out);
        for (const char* name : {"lse", "delta"}) on.add(name, lse);
        const int64_t bound = cudnn_workspace_bytes({.dtype = c.dtype,
                                                     .batch = c.batch,
                                                     .seq_len = c.seq_len,
                                                     .num_kv_heads = c.num_kv_heads,
                                                     .group = c.group,
                                                     .head_size = c.head_size,
                                                     .window = c.window});
        const AttentionForward forward = c.forward(on);
        const AttentionBackward backward = c.backward(on);
        if (cudnn.prepare(forward)) {
          EXPECT_LE(cudnn.workspace_bytes(forward), bound);
        }
        if (cudnn.prepare(backward)) {
          EXPECT_LE(cudnn.workspace_bytes(backward), bound);
        }
      }
}

}  // namespace
}  // namespace tri::test
