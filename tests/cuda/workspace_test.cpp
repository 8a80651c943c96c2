// The kernels need no more scratch memory than Device::workspace_bytes() promises.
#include "kernels/workspace.h"
#include "tests/cuda/cuda_test.h"

namespace tri::test {
namespace {

// Device memory for one operand, with arbitrary contents.
class Memory {
 public:
  Tensor take(Dtype dtype, std::initializer_list<int64_t> shape) {
    Tensor tensor(nullptr, dtype, shape);
    TRI_CUDA(cudaMalloc(&tensor.data, static_cast<size_t>(tensor.bytes())));
    TRI_CUDA(cudaMemset(tensor.data, 0, static_cast<size_t>(tensor.bytes())));
    blocks_.push_back(tensor.data);
    return tensor;
  }
  ~Memory() {
    for (void* block : blocks_) cudaFree(block);
  }

 private:
  std::vector<void*> blocks_;
};

// Runs one layer's kernels that use scratch memory, forward and backward, and the embedding's.
void run_layer(const WorkspaceDims& d, CudaStream& stream) {
  Memory memory;
  const int64_t R = d.batch * d.seq_len, C = d.width, heads = int64_t{d.num_kv_heads} * d.group;
  const int64_t qkv_width = d.num_kv_heads * (d.group + 2) * d.head_size;
  const Tensor x = memory.take(d.dtype, {R, C}), dx = memory.take(d.dtype, {R, C}), w = memory.take(d.dtype, {C});
  const Tensor statistics = memory.take(Dtype::kF32, {R}), dw = memory.take(Dtype::kF32, {C});
  cuda::norm_forward({.kind = Norm::kRmsNorm, .out = dx, .rstd = statistics, .inp = x, .weight = w}, stream);
  cuda::norm_backward({.kind = Norm::kRmsNorm,
                       .dinp = dx,
                       .dresidual = dx,
                       .dweight = dw,
                       .dout = x,
                       .inp = x,
                       .weight = w,
                       .rstd = statistics},
                      stream);
  const Tensor wide = memory.take(d.dtype, {R, d.widest}), dbias = memory.take(Dtype::kF32, {d.widest});
  const Tensor weight = memory.take(d.dtype, {d.widest, C});
  cuda::gemm({.out = wide, .a = x, .b = weight, .trans_b = Trans::kYes}, stream);
  cuda::bias_backward({.dbias = dbias, .dout = wide}, stream);
  const Tensor qkv = memory.take(d.dtype, {R, qkv_width}), dqkv = memory.take(d.dtype, {R, qkv_width});
  const Tensor out = memory.take(d.dtype, {R, heads * d.head_size});
  const Tensor lse = memory.take(Dtype::kF32, {d.batch, heads, d.seq_len});
  const Tensor delta = memory.take(Dtype::kF32, {d.batch, heads, d.seq_len});
  cuda::attention_forward({.out = out,
                           .lse = lse,
                           .qkv = qkv,
                           .order = d.order,
                           .seq_len = d.seq_len,
                           .num_kv_heads = d.num_kv_heads,
                           .group = d.group,
                           .window = d.window,
                           .scale = 0.1f,
                           .kernel = d.attention},
                          stream);
  cuda::attention_backward({.dqkv = dqkv,
                            .delta = delta,
                            .dout = out,
                            .out = out,
                            .lse = lse,
                            .qkv = qkv,
                            .order = d.order,
                            .seq_len = d.seq_len,
                            .num_kv_heads = d.num_kv_heads,
                            .group = d.group,
                            .window = d.window,
                            .scale = 0.1f,
                            .kernel = d.attention},
                           stream);
  constexpr int64_t kVocab = 1000;
  cuda::embedding_backward({.dweight = memory.take(Dtype::kF32, {kVocab, C}),
                            .dout = x,
                            .tokens = memory.take(Dtype::kI32, {R}),
                            .first_token = 0},
                           stream);
  TRI_CUDA(cudaDeviceSynchronize());
}

TEST(CudaWorkspace, a_layer_stays_within_what_the_device_promised) {
  TRI_NEEDS_GPU();
  struct Case {
    const char* name;
    int64_t B;
    int T;
    int64_t C, widest;
    int NKVl, G;
    int64_t HS;
    Dtype dtype = Dtype::kBF16;
    AttentionKernel kernel = AttentionKernel::kAuto;
    QkvOrder order = QkvOrder::kGrouped;
    int window = 0;
  };
  const AttentionKernel any = AttentionKernel::kAuto;
  const Case cases[] = {
      {"GPT-2 124M", 16, 1024, 768, 3072, 12, 1, 64},
      {"13B", 4, 2048, 5120, 20480, 40, 1, 128},
      {"13B, a share of tp 4", 4, 2048, 5120, 5120, 10, 1, 128},
      {"175B, the same", 1, 2048, 12288, 12288, 24, 1, 128},
      {"LLaMA 8B", 2, 4096, 4096, 28672, 8, 4, 128},
      {"LLaMA 8B, rows by kind", 8, 2048, 4096, 28672, 8, 4, 128, Dtype::kBF16, any, QkvOrder::kByKind},
      {"LLaMA 8B, our own attention", 2, 4096, 4096, 28672, 8, 4, 128, Dtype::kBF16, AttentionKernel::kBuiltin},
      {"a window", 2, 4096, 2048, 8192, 16, 1, 128, Dtype::kBF16, any, QkvOrder::kGrouped, 1024},
      {"rows too wide to be staged", 1, 256, 20480, 20480, 4, 1, 128},
      {"fp32", 2, 256, 256, 1024, 4, 1, 64, Dtype::kF32},
  };
  for (const auto& [name, B, T, C, widest, NKVl, G, HS, dtype, kernel, order, window] : cases) {
    const WorkspaceDims dims{.dtype = dtype,
                             .attention = kernel,
                             .batch = B,
                             .seq_len = T,
                             .width = C,
                             .widest = widest,
                             .num_kv_heads = NKVl,
                             .group = G,
                             .order = order,
                             .head_size = HS,
                             .window = window};
    SCOPED_TRACE(name);
    cuda::Context context(cuda::gpu_properties(0));
    TestStream stream(context);
    Memory memory;
    context.workspace().lend(
        memory.take(Dtype::kI32, {workspace_bytes(DeviceKind::kCuda, dims, context.properties()) / 4}));
    run_layer(dims, stream);
    EXPECT_EQ(context.workspace().bytes_beyond(), 0u);
    context.workspace().lend({});
  }
}

TEST(CudaWorkspace, what_is_not_lent_is_allocated_and_given_back) {
  TRI_NEEDS_GPU();
  cuda::Workspace workspace;
  Memory memory;
  const Tensor lent = memory.take(Dtype::kI32, {256});  // 1024 bytes
  workspace.lend(lent);
  void* first = workspace.buffer(nullptr, cuda::Scratch::kGemm, 500);
  EXPECT_EQ(first, lent.data);
  EXPECT_EQ(workspace.buffer(nullptr, cuda::Scratch::kGemm, 512), first) << "it has grown without need";
  EXPECT_EQ(workspace.bytes_beyond(), 0u);
  EXPECT_NE(workspace.buffer(nullptr, cuda::Scratch::kSort, 600), nullptr);
  EXPECT_EQ(workspace.bytes_beyond(), 768u);  // in multiples of 256
  workspace.lend({});
  EXPECT_EQ(workspace.bytes_beyond(), 0u);
}

TEST(CudaWorkspace, a_failed_allocation_changes_no_buffer) {
  TRI_NEEDS_GPU();
  cuda::Workspace workspace;
  void* const small = workspace.buffer(nullptr, cuda::Scratch::kGemm, 1000);
  EXPECT_THROW(workspace.buffer(nullptr, cuda::Scratch::kGemm, size_t{1} << 50), Fatal);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would report it";
  EXPECT_EQ(workspace.buffer(nullptr, cuda::Scratch::kGemm, 1000), small);
  EXPECT_NE(workspace.buffer(nullptr, cuda::Scratch::kGemm, 2000), small) << "too small";
}

}  // namespace
}  // namespace tri::test
