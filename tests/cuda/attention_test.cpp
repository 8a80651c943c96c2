// Every attention kernel against the CPU reference.
#include "kernels/cuda/flash_attention.h"
#include "kernels/workspace.h"
#include "tests/cuda/op_compare.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

constexpr AttentionKernel kBuiltin = AttentionKernel::kBuiltin;

struct Heads {
  int kv = 1, group = 1, size = 64;
};

struct Case {
  Dtype dtype = Dtype::kBF16;
  int batch = 2, seq_len = 0;
  Heads heads;
  int window = 0;
  AttentionKernel kernel = AttentionKernel::kAuto;
  bool deterministic = true;
  QkvOrder order = QkvOrder::kGrouped;
  float softcap = 0;
  int document = 0;         // documents of up to so many tokens; 0: whole samples
  int ranks = 1, rank = 0;  // more than one: the queries are the chunks `rank` and 2 · ranks - 1 - rank of each sample
  int first_head = 0;       // with ranks: only the key/value heads from this one on are computed

  int key_len() const { return seq_len * ranks; }
  int64_t rows() const { return int64_t{batch} * seq_len; }
  int64_t num_heads() const { return int64_t{heads.kv} * heads.group; }
  int64_t qkv_width() const { return int64_t{heads.kv} * (heads.group + 2) * heads.size; }
  int64_t out_width() const { return num_heads() * heads.size; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(heads.size)); }
  std::string text() const {
    return fmt::format("{} B {} T {} heads {} x {} from {} HS {} W {} cap {} documents {} rank {} of {} {}{}",
                       enum_name(dtype), batch, seq_len, heads.kv, heads.group, first_head, heads.size, window, softcap,
                       document, rank, ranks, enum_name(kernel), order == QkvOrder::kByKind ? ", by kind" : "");
  }
  // Documents of 1, `document` and numbers in between, in an order that differs between samples.
  Buffer first_key() const {
    if (document == 0) return {};
    Values starts;
    for (int b = 0; b < batch; ++b)
      for (int t = 0, start = 0, number = b; t < key_len(); ++t) {
        const int tokens = number % 3 == 2 ? 1 : number % 3 == 0 ? document : document * (number % 7 + 1) / 9 + 1;
        if (t - start == tokens) start = t, ++number;
        starts.push_back(start);
      }
    return {Dtype::kI32, {batch, key_len()}, starts};
  }
  Buffer kv(bool gradient) const {
    if (ranks == 1) return {};
    const int64_t kv_rows = int64_t{batch} * key_len(), width = int64_t{heads.kv - first_head} * 2 * heads.size;
    return gradient ? Buffer(dtype, {kv_rows, width})
                    : Buffer(dtype, {kv_rows, width}, random_values(kv_rows * width, "kv"));
  }
  template <class Args>
  Args with_band(Args args, const Place& on) const {
    if (document > 0) args.first_key = on("first_key");
    if (ranks == 1) return args;
    args.kv = on("kv");
    args.key_len = key_len();
    args.first_kv_head = first_head;
    args.chunk_start = {rank * seq_len / 2, (2 * ranks - 1 - rank) * seq_len / 2};
    if constexpr (requires { args.dkv; }) args.dkv = on("dkv");
    return args;
  }
  template <class Args>
  Args without_operands() const {
    return {.order = order,
            .seq_len = seq_len,
            .num_kv_heads = heads.kv,
            .group = heads.group,
            .window = window,
            .scale = scale(),
            .softcap = softcap,
            .kernel = kernel};
  }
  AttentionForward forward(const Place& on) const {
    return with_band(TRI_MAKE(without_operands<AttentionForward>(), out, lse, qkv)(on), on);
  }
  AttentionBackward backward(const Place& on) const {
    AttentionBackward args = TRI_MAKE(without_operands<AttentionBackward>(), dqkv, delta, dout, out, lse, qkv)(on);
    args.deterministic = deterministic;
    return with_band(args, on);
  }
};

// Runs both passes of a case on the GPU only, for all its sequences or some.
class GpuCase {
 public:
  // `qkv` is in the case's order.
  GpuCase(const Case& c, const Values& qkv)
      : case_(c),
        operands_{
            {"out", Buffer(c.dtype, {c.rows(), c.out_width()})},
            {"lse", Buffer(Dtype::kF32, {c.batch, c.num_heads(), c.seq_len})},
            {"dqkv", Buffer(c.dtype, {c.rows(), c.qkv_width()})},
            {"delta", Buffer(Dtype::kF32, {c.batch, c.num_heads(), c.seq_len})},
            {"qkv", Buffer(c.dtype, {c.rows(), c.qkv_width()}, qkv)},
            {"dout", Buffer(c.dtype, {c.rows(), c.out_width()}, random_values(c.rows() * c.out_width(), "dout"))}} {
    if (c.document > 0) operands_.emplace("first_key", c.first_key());
    for (const auto& [name, buffer] : operands_) on_device_[name] = std::make_unique<DeviceBuffer>(buffer);
  }
  void run(int first, int count, CudaStream& stream = test_stream()) {
    Place on;
    for (const auto& [name, buffer] : on_device_) {
      const Tensor all = *buffer;
      const int64_t rows = all[0] / case_.batch;  // rows per sequence
      on.add(name, all.rows(first * rows, count * rows));
    }
    cuda::attention_forward(case_.forward(on), stream);
    cuda::attention_backward(case_.backward(on), stream);
  }
  Values values(const std::string& name) const { return on_device_.at(name)->values(operands_.at(name)); }

 private:
  const Case case_;
  std::map<std::string, Buffer> operands_;
  std::map<std::string, std::unique_ptr<DeviceBuffer>> on_device_;
};

// Streams on which each kind of the project's tensor-core kernels runs: those that the GPU selects and, on Hopper, also
// the mma.sync kernels.
std::vector<CudaStream*> flash_streams() {
  const GpuProperties gpu = cuda::gpu_properties(0);
  if (!flash_attention_is_hoppers(gpu)) return {&test_stream()};
  static cuda::Context context([&] {
    GpuProperties ampere = gpu;
    ampere.capability = 80;
    return ampere;
  }());
  static TestStream stream(context);
  return {&test_stream(), &stream};
}
std::string kind_of(CudaStream& stream) {
  return flash_attention_is_hoppers(stream.context().properties()) ? "Hopper's kernels" : "mma.sync";
}

// The HS elements of a token's head are compared as a vector: tensor-core kernels round probabilities and the gradients
// of scores to bf16, which shows in single elements that nearly cancel.
void compare_attention(const Case& c, CudaStream& stream = test_stream()) {
  const bool fp32 = c.dtype == Dtype::kF32;
  const Buffer qkv(c.dtype, {c.rows(), c.qkv_width()}, random_values(c.rows() * c.qkv_width(), "qkv")),
      dout(c.dtype, {c.rows(), c.out_width()}, random_values(c.rows() * c.out_width(), "dout"));
  const Buffer statistic(Dtype::kF32, {c.batch, c.num_heads(), c.seq_len});
  const Operands forward =
      TRI_COMPARE_ON(stream, attention_forward, c.text(),
                     (Operands{{"out", Buffer(c.dtype, {c.rows(), c.out_width()})},
                               {"lse", statistic},
                               {"qkv", qkv},
                               {"first_key", c.first_key()},
                               {"kv", c.kv(/*gradient=*/false)}}),
                     ([&](const Place& on) { return c.forward(on); }),
                     Comparisons(fp32 ? elements(2e-5) : vectors(2e-2, c.heads.size),
                                 {{"lse", elements(fp32 ? 2e-5 : 5e-3)}, {"first_key", same_bits}}));
  // Each kernel uses "delta" differently: some store the sum there, others do not need it.
  const Buffer out = forward[0].second, lse = forward[1].second;
  Comparisons comparisons(fp32 ? elements(5e-5) : vectors(2e-2, c.heads.size),
                          {{"lse", same_bits}, {"first_key", same_bits}});
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
               {"qkv", qkv},
               {"first_key", c.first_key()},
               {"kv", c.kv(/*gradient=*/false)},
               {"dkv", c.kv(/*gradient=*/true)}},
      backward, [](const AttentionBackward& args) { cpu::attention_backward(args); },
      [&](AttentionBackward args, CudaStream& on) {
        args.delta = delta;
        cuda::attention_backward(args, on);
      },
      comparisons, stream);
}

void compare_flash(const Case& c) {
  for (CudaStream* stream : flash_streams()) {
    SCOPED_TRACE(kind_of(*stream));
    compare_attention(c, *stream);
  }
}

TEST(CudaAttention, scalar_kernels_match_cpu) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const int seq_len : {1, 3, 65, 200})
      for (const auto& [kv, group, head_size] : {std::tuple{1, 1, 1}, {2, 2, 18}, {1, 4, 65}, {2, 1, 84}, {1, 1, 164}})
        for (const int window : {0, 1, 7, 64, seq_len}) {
          if (window > seq_len) continue;
          compare_attention({.dtype = dtype,
                             .seq_len = seq_len,
                             .heads = {kv, group, head_size},
                             .window = window,
                             .kernel = kBuiltin});
        }
}

TEST(CudaAttention, flash_kernels_match_cpu) {
  TRI_NEEDS_GPU();
  for (const int head_size : {64, 96, 128, 256})
    for (const auto& [kv, group] : {std::pair{1, 1}, {3, 1}, {2, 2}, {1, 4}})
      for (const int seq_len : {1, 63, 128, 200, 515})
        for (const int window : {0, 1, 50, 64, 130, 300}) {
          if (window > seq_len) continue;
          const Case c{.seq_len = seq_len, .heads = {kv, group, head_size}, .window = window, .kernel = kBuiltin};
          compare_flash(c);
        }
}

// Tiles of 64, 96, 128 and 256 columns, partly zeros.
TEST(CudaAttention, flash_kernels_match_cpu_with_heads_that_do_not_fill_their_tiles) {
  TRI_NEEDS_GPU();
  for (const int head_size : {16, 40, 72, 80, 112, 120, 136, 192, 248})
    for (const auto& [kv, group] : {std::pair{3, 1}, {2, 2}})
      for (const QkvOrder order : kOrders)
        for (const int seq_len : {63, 200, 515})
          for (const auto& [window, document] : {std::pair{0, 0}, {50, 0}, {0, 100}})
            compare_attention({.seq_len = seq_len,
                               .heads = {kv, group, head_size},
                               .window = window,
                               .kernel = kBuiltin,
                               .order = order,
                               .document = document});
}

// Scores of random operands are mostly within 2: a cap of 1 bends them all, one of 50 (Gemma-2) hardly any.
TEST(CudaAttention, softcap_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const float softcap : {1.0f, 50.0f})
    for (const int window : {0, 50}) {
      for (const int head_size : {64, 96, 128, 256})
        for (const auto& [kv, group] : {std::pair{3, 1}, {1, 4}})
          for (const int seq_len : {63, 128, 200, 515})
            compare_flash({.seq_len = seq_len, .heads = {kv, group, head_size}, .window = window, .softcap = softcap});
      for (const Dtype dtype : kTypes)
        compare_attention({.dtype = dtype,
                           .seq_len = 130,
                           .heads = {2, 2, 84},
                           .window = window,
                           .kernel = kBuiltin,
                           .softcap = softcap});
    }
}

// Documents of one token, shorter and longer than a tile, and longer than a sample.
TEST(CudaAttention, documents_match_cpu) {
  TRI_NEEDS_GPU();
  for (const int document : {9, 100, 400, 2000})
    for (const auto& [window, softcap] : {std::pair{0, 0.0f}, {130, 1.0f}}) {
      for (const int head_size : {64, 96, 128, 256})
        for (const auto& [seq_len, kv, group] : {std::tuple{515, 2, 2}, {700, 1, 2}})
          compare_flash({.seq_len = seq_len,
                         .heads = {kv, group, head_size},
                         .window = window,
                         .softcap = softcap,
                         .document = document});
      for (const Dtype dtype : kTypes)
        compare_attention({.dtype = dtype,
                           .seq_len = 200,
                           .heads = {2, 2, 84},
                           .window = window,
                           .softcap = softcap,
                           .document = document});
    }
}

// The queries of each rank of context parallelism, with whole samples and with documents.
TEST(CudaAttention, chunks_match_cpu) {
  TRI_NEEDS_GPU();
  for (const int ranks : {2, 4})
    for (int rank = 0; rank < ranks; ++rank)
      for (const int document : {0, 400})
        for (const auto& [window, softcap] : {std::pair{0, 0.0f}, {130, 1.0f}}) {
          for (const int head_size : rank == 0 ? std::vector{64, 96, 128, 256} : std::vector{128, 256})
            compare_flash({.seq_len = 256,
                           .heads = {2, 2, head_size},
                           .window = window,
                           .order = rank % 2 == 0 ? QkvOrder::kGrouped : QkvOrder::kByKind,
                           .softcap = softcap,
                           .document = document,
                           .ranks = ranks,
                           .rank = rank});
          compare_attention({.dtype = Dtype::kF32,
                             .seq_len = 50,
                             .heads = {2, 2, 16},
                             .window = window,
                             .softcap = softcap,
                             .document = document,
                             .ranks = ranks,
                             .rank = rank});
        }
  // Some of the heads.
  for (const QkvOrder order : kOrders)
    for (const int head_size : {16, 64, 96, 128, 256}) {
      const Case c{.dtype = head_size == 16 ? Dtype::kF32 : Dtype::kBF16,
                   .seq_len = 256,
                   .heads = {3, 2, head_size},
                   .order = order,
                   .ranks = 2,
                   .rank = 1,
                   .first_head = 1};
      head_size == 16 ? compare_attention(c) : compare_flash(c);
    }
}

// One document is no document, whatever the order of the tiles.
TEST(CudaAttention, one_document_makes_the_bits_of_none) {
  TRI_NEEDS_GPU();
  for (CudaStream* stream : flash_streams())
    for (const int head_size : {64, 128, 256}) {
      const Case c{.batch = 1, .seq_len = 600, .heads = {2, 2, head_size}, .kernel = kBuiltin};
      GpuCase whole(c, random_values(c.rows() * c.qkv_width(), "qkv"));
      Case documents = c;
      documents.document = 2000;
      GpuCase one(documents, random_values(c.rows() * c.qkv_width(), "qkv"));
      whole.run(0, c.batch, *stream);
      one.run(0, c.batch, *stream);
      for (const char* name : {"out", "lse", "dqkv"})
        EXPECT_EQ(difference(one.values(name), whole.values(name), same_bits), "") << name << ", " << kind_of(*stream);
    }
}

// More (sequence, key/value head) pairs than the backward kernel processes at once (32), in sections of equal size (64,
// 36 and not 33, 35).
TEST(CudaAttention, flash_kernels_match_cpu_with_many_heads) {
  TRI_NEEDS_GPU();
  for (const int head_size : {64, 128, 256})
    for (const auto& [batch, kv, group] : {std::tuple{11, 3, 1}, {5, 7, 2}, {9, 4, 1}, {4, 16, 1}})
      for (const int window : {0, 100}) {
        const Case c{
            .batch = batch, .seq_len = 260, .heads = {kv, group, head_size}, .window = window, .kernel = kBuiltin};
        compare_flash(c);
      }
}

// Hopper's forward kernel processes pairs in sections whose keys and values fit in L2: here sections of six and of one.
TEST(CudaAttention, flash_kernels_match_cpu_beyond_the_cache) {
  TRI_NEEDS_GPU();
  compare_attention({.batch = 1, .seq_len = 8192, .heads = {7, 1, 128}, .window = 40, .kernel = kBuiltin});
}

TEST(CudaAttention, cudnn_matches_cpu) {
  TRI_NEEDS_GPU();
  if (!cuda::built_with_cudnn()) GTEST_SKIP() << "skipped: built without cuDNN";
  for (const int seq_len : {64, 128, 200, 512})
    for (const int head_size : {64, 96, 128})
      for (const int window : {0, 1, 50, 64})
        compare_attention(
            {.seq_len = seq_len, .heads = {3, 1, head_size}, .window = window, .kernel = AttentionKernel::kCudnn});
}

// cuDNN processes grouped rows of several groups one sequence at a time, others in whole batches.
TEST(CudaAttention, cudnn_matches_cpu_with_grouped_heads) {
  TRI_NEEDS_GPU();
  if (!cuda::built_with_cudnn()) GTEST_SKIP() << "skipped: built without cuDNN";
  for (const auto& [kv, group] : {std::pair{3, 4}, {2, 2}, {1, 8}})
    for (const int seq_len : {128, 200, 384})
      for (const auto& [head_size, window] : {std::pair{64, 0}, {64, 50}, {96, 0}, {128, 0}, {128, 64}})
        for (const QkvOrder order : kOrders) {
          if (kv == 1 && order == QkvOrder::kByKind) continue;  // with one key/value head both orders are equal
          compare_attention({.batch = 3,
                             .seq_len = seq_len,
                             .heads = {kv, group, head_size},
                             .window = window,
                             .kernel = AttentionKernel::kCudnn,
                             .order = order});
        }
}

// More sequences than one execution may process: of four, whose scores' gradients are 1 GiB each, two at once.
TEST(CudaAttention, cudnn_matches_cpu_where_a_batch_is_several_executions) {
  TRI_NEEDS_GPU();
  if (!cuda::built_with_cudnn()) GTEST_SKIP() << "skipped: built without cuDNN";
  const Case c{.batch = 4, .seq_len = 8192, .heads = {2, 4}, .order = QkvOrder::kByKind};
  ASSERT_EQ(cudnn_sequences({.batch = c.batch,
                             .seq_len = c.seq_len,
                             .num_kv_heads = c.heads.kv,
                             .group = c.heads.group,
                             .order = c.order,
                             .head_size = c.heads.size}),
            2);
  const Values qkv = random_values(c.rows() * c.qkv_width(), "qkv");
  GpuCase batch(c, qkv), sequences(c, qkv);
  batch.run(0, c.batch);
  for (int b = 0; b < c.batch; ++b) sequences.run(b, 1);
  for (const char* name : {"out", "dqkv"})
    EXPECT_EQ(difference(batch.values(name), sequences.values(name), vectors(2e-2, c.heads.size)), "") << name;
  EXPECT_EQ(difference(batch.values("lse"), sequences.values("lse"), elements(5e-3)), "");
}

TEST(CudaAttention, native_kernels_make_the_same_bits_in_either_order) {
  TRI_NEEDS_GPU();
  for (const auto& [dtype, head_size] : {std::pair{Dtype::kBF16, 64},
                                         {Dtype::kBF16, 96},
                                         {Dtype::kBF16, 128},
                                         {Dtype::kBF16, 256},
                                         {Dtype::kBF16, 20},
                                         {Dtype::kF32, 48}})
    for (const auto& [kv, group] : {std::pair{2, 1}, {2, 2}, {3, 4}})
      for (const int window : {0, 70}) {
        Case c{.dtype = dtype, .seq_len = 200, .heads = {kv, group, head_size}, .window = window, .kernel = kBuiltin};
        SCOPED_TRACE(c.text());
        const auto by_kind = [&](const Values& rows) {
          return rows_in(QkvOrder::kByKind, rows, c.heads.kv, c.heads.group, c.heads.size);
        };
        const Values qkv = random_values(c.rows() * c.qkv_width(), "qkv");
        for (CudaStream* stream : flash_streams()) {
          SCOPED_TRACE(kind_of(*stream));
          c.order = QkvOrder::kGrouped;
          GpuCase grouped(c, qkv);
          c.order = QkvOrder::kByKind;
          GpuCase kinds(c, by_kind(qkv));
          for (GpuCase* each : {&grouped, &kinds}) each->run(0, c.batch, *stream);
          EXPECT_EQ(kinds.values("out"), grouped.values("out"));
          EXPECT_EQ(kinds.values("lse"), grouped.values("lse"));
          EXPECT_EQ(kinds.values("dqkv"), by_kind(grouped.values("dqkv")));
        }
      }
}

// With 14 (sequence, key/value head) pairs of 32,768 tokens, blocks of Hopper's backward pass start in waves; with the
// seven pairs of one sequence they do not, since waiting would cost more (set_wave).
TEST(CudaAttention, waves_of_blocks_change_no_bit) {
  TRI_NEEDS_GPU();
  const Case c{.batch = 2, .seq_len = 32768, .heads = {7, 1, 64}, .kernel = kBuiltin};
  const Values qkv = random_values(c.rows() * c.qkv_width(), "qkv");
  GpuCase waves(c, qkv), single(c, qkv);
  waves.run(0, c.batch);
  for (int b = 0; b < c.batch; ++b) single.run(b, 1);
  EXPECT_EQ(difference(waves.values("dqkv"), single.values("dqkv"), same_bits), "");
}

// run.deterministic: false. The project's own kernels ignore it.
TEST(CudaAttention, backward_in_any_order_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const AttentionKernel kernel : {AttentionKernel::kAuto, AttentionKernel::kBuiltin})
    for (const auto& [kv, group] : {std::pair{3, 1}, {2, 4}, {1, 8}})
      for (const auto& [seq_len, head_size] : {std::pair{128, 64}, {515, 128}})
        compare_attention({.batch = 3,
                           .seq_len = seq_len,
                           .heads = {kv, group, head_size},
                           .kernel = kernel,
                           .deterministic = false});
}

// Whether or not cuDNN supports a shape: if it refuses the graph, or in a build without it, another path runs.
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
        compare_attention({.seq_len = seq_len, .heads = {2, group, head_size}, .window = window}, stream);
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

// Rows at the end of cached sequences of different lengths, one of them several tokens long, and padding. With a window
// the slots are used several times.
TEST(CudaAttention, cached_rows_match_the_cpu) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [kv_heads, group, head_size, window, slots] : {std::tuple{1, 1, 2, 0, 300},
                                                                    {2, 3, 33, 0, 300},
                                                                    {2, 4, 64, 0, 1000},
                                                                    {8, 1, 128, 128, 140},
                                                                    {3, 2, 80, 1, 9},
                                                                    {1, 8, 256, 200, 205},
                                                                    {1, 1, 1024, 0, 300}})
      for (const QkvOrder order : kOrders) {
        const std::string what = fmt::format("{} heads {} x {} HS {} W {} slots {} {}", enum_name(dtype), kv_heads,
                                             group, head_size, window, slots, enum_name(order));
        const Values sequences{0, 1, 1, 1, -1, 2, 3}, positions{0, 5, 6, 7, 0, 127, 299};
        const int64_t rows = std::ssize(sequences), width = int64_t{kv_heads} * head_size;
        const auto cache = [&, kv = kv_heads, hs = head_size, slots = slots](const char* name) {
          return Buffer(dtype, {4, slots, kv * hs}, random_values(int64_t{4} * slots * kv * hs, name));
        };
        const int64_t qkv_width = width * (group + 2);
        TRI_COMPARE(cached_attention, what,
                    (Operands{{"out", Buffer(dtype, {rows, width * group})},
                              {"keys", cache("keys")},
                              {"values", cache("values")},
                              {"qkv", Buffer(dtype, {rows, qkv_width}, random_values(rows * qkv_width, "qkv"))},
                              {"sequences", Buffer(Dtype::kI32, {rows}, sequences)},
                              {"positions", Buffer(Dtype::kI32, {rows}, positions)}}),
                    TRI_MAKE((CachedAttention{.order = order,
                                              .num_kv_heads = kv_heads,
                                              .group = group,
                                              .window = window,
                                              .scale = 1.0f / std::sqrt(static_cast<float>(head_size)),
                                              .softcap = order == QkvOrder::kByKind ? 1.5f : 0.0f}),
                             out, keys, values, qkv, sequences, positions),
                    Comparisons(rounding_of(dtype), {{"keys", same_bits}, {"values", same_bits}}));
      }
}

// The workspace that cuDNN's graphs request is within the bound that the arena reserves.
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
      for (const auto& [window, order] : {std::pair{0, QkvOrder::kGrouped},
                                          {512, QkvOrder::kGrouped},
                                          {0, QkvOrder::kByKind},
                                          {512, QkvOrder::kByKind}}) {
        if (window > seq_len) continue;
        const Case c{
            .batch = batch, .seq_len = seq_len, .heads = {heads, group, head_size}, .window = window, .order = order};
        SCOPED_TRACE(c.text());
        // Only shapes are used.
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
                                                     .num_kv_heads = c.heads.kv,
                                                     .group = c.heads.group,
                                                     .order = c.order,
                                                     .head_size = c.heads.size,
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
