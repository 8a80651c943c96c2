// Every CUDA operation except GEMM, attention, FP8 and the optimizers against its CPU reference.
#include "kernels/core/dims.h"
#include "kernels/no_target.h"
#include "tests/cuda/op_compare.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

// Cosines and sines that are multiplied by an attention factor: backward passes are not inverse rotations.
constexpr RopeAngles kAngles{
    .theta = 10000, .scaling = RopeScaling::kYarn, .factor = 4, .original_seq_len = 64, .beta_fast = 4};

struct NormCase {
  Dtype dtype;
  Norm kind;
  int64_t parts;  // of add and dout; 0: no optional operands
  int64_t rows, width;
};

void compare_norms(const NormCase& c, CudaStream& stream) {
  const auto [dtype, kind, parts, rows, width] = c;
  const bool layernorm = kind == Norm::kLayerNorm, rich = parts > 0;
  const std::string what =
      fmt::format("{} {} R {} C {} {} parts", enum_name(dtype), enum_name(kind), rows, width, parts);
  const auto sum_of_parts = [&](const char* name) {
    const Values values = random_values(std::max<int64_t>(c.parts, 1) * c.rows * c.width, name);
    return c.parts > 1 ? Buffer(c.dtype, {c.parts, c.rows, c.width}, values)
                       : Buffer(c.dtype, {c.rows, c.width}, values);
  };
  const auto matrix = [&](const char* name) {
    return Buffer(c.dtype, {c.rows, c.width}, random_values(c.rows * c.width, name));
  };
  const auto vector = [&](Dtype type, const char* name) {
    return Buffer(type, {c.width}, random_values(c.width, name));
  };
  const Buffer poisoned(dtype, {rows, width}), statistics(Dtype::kF32, {rows}), absent;
  const Comparison rounding = rounding_of(dtype);
  const float offset = parts == 2 ? 1.0f : 0.0f;  // added to the weight
  const auto forward = TRI_MAKE((NormForward{.kind = c.kind, .eps = 1e-5f, .offset = offset}), out, mean, rstd, sum,
                                inp, add, add_bias, weight, bias);
  TRI_COMPARE_ON(stream, norm_forward, what,
                 (Operands{{"out", poisoned},
                           {"mean", layernorm ? statistics : absent},
                           {"rstd", statistics},
                           {"sum", rich ? poisoned : absent},
                           {"inp", matrix("inp")},
                           {"add", rich ? sum_of_parts("add") : absent},
                           {"add_bias", rich ? vector(dtype, "add_bias") : absent},
                           {"weight", vector(dtype, "weight")},
                           {"bias", rich && layernorm ? vector(dtype, "bias") : absent}}),
                 forward, rounding);
  const auto add = TRI_MAKE(ResidualAdd{}, out, inp, add, add_bias);
  TRI_COMPARE_ON(stream, residual_add, what,
                 (Operands{{"out", poisoned},
                           {"inp", matrix("inp")},
                           {"add", sum_of_parts("add")},
                           {"add_bias", rich ? vector(dtype, "add_bias") : absent}}),
                 add, rounding);
  if (width == 1) return;  // the gradient of a norm of one element is rounding noise
  Values rstd(static_cast<size_t>(rows)), mean(rstd.size());
  for (size_t r = 0; r < rstd.size(); ++r) rstd[r] = 0.5 + 0.01 * static_cast<double>(r % 7), mean[r] = 0.1;
  const auto backward = TRI_MAKE((NormBackward{.kind = c.kind, .offset = offset}), dinp, dresidual, dweight, dbias,
                                 dout, inp, weight, mean, rstd);
  TRI_COMPARE_ON(stream, norm_backward, what,
                 (Operands{{"dinp", poisoned},
                           {"dresidual", rich ? matrix("dresidual") : absent},
                           {"dweight", vector(Dtype::kF32, "dweight")},
                           {"dbias", rich && layernorm ? vector(Dtype::kF32, "dbias") : absent},
                           {"dout", sum_of_parts("dout")},
                           {"inp", matrix("inp")},
                           {"weight", vector(dtype, "weight")},
                           {"mean", layernorm ? Buffer(Dtype::kF32, {rows}, mean) : absent},
                           {"rstd", Buffer(Dtype::kF32, {rows}, rstd)}}),
                 backward, rounding);
}

// Makes the arguments of a backward op that overwrites the gradient it reads.
template <class Make>
auto in_place(Make make) {
  return [make](const Place& on) {
    auto args = make(on);
    args.dinp = args.dout;
    return args;
  };
}

// Calls f for both dtypes and kinds of norms, and operands in 0, 1, 2 and 4 parts.
template <class F>
void for_each_norm(F f) {
  for (const Dtype dtype : kTypes)
    for (const Norm kind : {Norm::kLayerNorm, Norm::kRmsNorm})
      for (const int64_t parts : {0, 1, 2, 4}) f(NormCase{dtype, kind, parts, 0, 0});
}

TEST(CudaOps, norm_forward_and_backward) {
  TRI_NEEDS_GPU();
  for_each_norm([](NormCase c) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1},
                                      {3, 5},
                                      {70, 64},
                                      {17, 257},
                                      {130, 768},
                                      {300, 776},
                                      {9, 5120},
                                      {9, 12288}}) {
      c.rows = rows, c.width = width;
      compare_norms(c, test_stream());
    }
  });
}

// Rows beyond shared memory, in whole packs and not, and a number of rows that blocks share.
TEST(CudaOps, norms_take_rows_of_any_width) {
  TRI_NEEDS_GPU();
  for_each_norm([](NormCase c) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3, 12289}, {3, 20480}, {2, 65536}, {2, 65537}}) {
      c.rows = rows, c.width = width;
      compare_norms(c, test_stream());
    }
  });
  compare_norms({Dtype::kBF16, Norm::kLayerNorm, 1, 700, 12296}, test_stream());
}

// The limit of an A100's shared memory: C 11520 is the largest that is staged with a residual.
TEST(CudaOps, norms_heed_the_shared_memory_of_the_gpu) {
  TRI_NEEDS_GPU();
  GpuProperties gpu = cuda::gpu_properties(0);
  gpu.max_shared_bytes = 163 * 1024;
  cuda::Context context(gpu);
  TestStream stream(context);
  for_each_norm([&](NormCase c) {
    for (const int64_t width : {11520, 11528, 12288}) {
      c.rows = 5, c.width = width;
      compare_norms(c, stream);
    }
  });
}

TEST(CudaOps, activation_elementwise_and_bias) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 64}, {200, 264}, {300, 1000}}) {
      const std::string what = fmt::format("{} R {} F {}", enum_name(dtype), rows, width);
      const int64_t n = rows * width;
      const Comparison rounding = rounding_of(dtype);
      for (const Activation kind : kActivationKernels) {
        const int64_t inner = width * (is_gated(kind) ? 2 : 1);
        const Buffer inp(dtype, {rows, inner}, random_values(rows * inner, "inp", 2.0));
        const Buffer dout(dtype, {rows, width}, random_values(n, "dout"));
        TRI_COMPARE(activation_forward, what, (Operands{{"out", Buffer(dtype, {rows, width})}, {"inp", inp}}),
                    TRI_MAKE((ActivationForward{.kind = kind}), out, inp), rounding);
        TRI_COMPARE(activation_backward, what,
                    (Operands{{"dinp", Buffer(dtype, {rows, inner})}, {"dout", dout}, {"inp", inp}}),
                    TRI_MAKE((ActivationBackward{.kind = kind}), dinp, dout, inp), rounding);
      }
      TRI_COMPARE(bias_backward, what,
                  (Operands{{"dbias", Buffer(Dtype::kF32, {width}, random_values(width, "dbias"))},
                            {"dout", Buffer(dtype, {rows, width}, random_values(n, "dout"))}}),
                  TRI_MAKE(BiasBackward{}, dbias, dout), rounding);
      for (const Dtype to : kTypes)
        TRI_COMPARE(cast, what,
                    (Operands{{"out", Buffer(to, {n})}, {"inp", Buffer(dtype, {n}, random_values(n, "inp"))}}),
                    TRI_MAKE(Cast{}, out, inp), same_bits);
      TRI_COMPARE(accumulate, what,
                  (Operands{{"inout", Buffer(dtype, {n}, random_values(n, "inout"))},
                            {"inp", Buffer(dtype, {n}, random_values(n, "inp"))}}),
                  TRI_MAKE(Accumulate{}, inout, inp), rounding);
      for (const int64_t num_parts : {1, 2, 5})
        for (const SumInto into : {SumInto::kOverwrite, SumInto::kAdd})
          TRI_COMPARE(sum_parts, fmt::format("{} P {}", what, num_parts),
                      (Operands{{"out", into == SumInto::kAdd ? Buffer(dtype, {n}, random_values(n, "out"))
                                                              : Buffer(dtype, {n})},
                                {"parts", Buffer(dtype, {num_parts, n}, random_values(num_parts * n, "parts"))}}),
                      TRI_MAKE((SumParts{.into = into}), out, parts), same_bits);
    }
}

TEST(CudaOps, embedding_and_position) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, width, vocab] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {7, 5, 3}, {300, 65, 40}, {1000, 40, 2}, {2000, 96, 700}})
      for (const int first : {0, 2}) {
        const std::string what = fmt::format("{} R {} C {} V {} from {}", enum_name(dtype), rows, width, vocab, first);
        const float scale = first == 0 ? 1.0f : 22.627417f;
        const Buffer poisoned(dtype, {rows, width});
        const Buffer tokens(Dtype::kI32, {rows}, random_integers(rows, vocab + 3, "tokens"));  // some are elsewhere
        const Buffer table(dtype, {vocab, width}, random_values(vocab * width, "weight"));
        const Buffer dtable(Dtype::kF32, {vocab, width}, random_values(vocab * width, "dweight"));
        const Buffer dout(dtype, {rows, width}, random_values(rows * width, "dout"));
        TRI_COMPARE(embedding_forward, what, (Operands{{"out", poisoned}, {"tokens", tokens}, {"weight", table}}),
                    TRI_MAKE((EmbeddingForward{.first_token = first, .scale = scale}), out, tokens, weight), same_bits);
        TRI_COMPARE(embedding_backward, what, (Operands{{"dweight", dtable}, {"dout", dout}, {"tokens", tokens}}),
                    TRI_MAKE((EmbeddingBackward{.first_token = first, .scale = scale}), dweight, dout, tokens),
                    elements(kFloatTolerance));
        TRI_COMPARE(position_forward, what, (Operands{{"inout", dout}, {"weight", table}}),
                    TRI_MAKE((PositionForward{.first_row = first * 5}), inout, weight), same_bits);
        TRI_COMPARE(position_backward, what, (Operands{{"dweight", dtable}, {"dout", dout}}),
                    TRI_MAKE((PositionBackward{.first_row = first * 5}), dweight, dout), elements(kFloatTolerance));
      }
}

TEST(CudaOps, row_positions) {
  TRI_NEEDS_GPU();
  for (const auto& [batch, seq_len, key_len] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 300, 300}, {2, 64, 256}}) {
    Values values(static_cast<size_t>(batch * key_len));
    for (int64_t i = 0; i < batch * key_len; ++i)
      values[static_cast<size_t>(i)] = static_cast<double>(i % key_len / 7 * 7);
    const Buffer out(Dtype::kI32, {batch * seq_len}), starts(Dtype::kI32, {batch, key_len}, values);
    TRI_COMPARE(row_positions, fmt::format("B {} T {} of {}", batch, seq_len, key_len),
                (Operands{{"out", out}, {"document_starts", starts}}),
                TRI_MAKE((RowPositions{.chunk_start = {32, 192}}), out, document_starts), same_bits);
  }
}

TEST(CudaOps, rope) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [seq_len, kv, group, half] :
         {std::tuple{3, 1, 1, 1}, {16, 2, 3, 32}, {40, 3, 1, 5}, {7, 3, 2, 12}, {65, 2, 4, 64}})
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const int64_t width = int64_t{kv} * (group + 2) * 2 * half, rows = 2 * seq_len;
        std::vector<float> table(static_cast<size_t>(seq_len) * half * 2);
        fill_rope_table(table.data(), seq_len, 2 * half, kAngles);
        const Buffer angles(Dtype::kF32, {seq_len, half, 2}, Values(table.begin(), table.end()));
        const Buffer inp(dtype, {rows, width}, random_values(rows * width, "qkv")), out(dtype, {rows, width});
        for (const QkvOrder from : kOrders)
          for (const QkvOrder to : kOrders) {
            const std::string what = fmt::format("{} T {} heads {} x {} HS {}, {} to {}", enum_name(dtype), seq_len, kv,
                                                 group, 2 * half, enum_name(from), enum_name(to));
            const auto args = [&, kv = kv, group = group](const Place& on, const char* rows_in) {
              return Rope{.pass = pass,
                          .out = on("out"),
                          .inp = on(rows_in),
                          .table = on("table"),
                          .num_kv_heads = kv,
                          .group = group,
                          .out_order = to,
                          .inp_order = from};
            };
            TRI_COMPARE(rope, what, (Operands{{"out", out}, {"inp", inp}, {"table", angles}}),
                        ([&](const Place& on) { return args(on, "inp"); }), rounding_of(dtype));
            if (from == to)
              TRI_COMPARE(rope, what + " in place", (Operands{{"out", inp}, {"table", angles}}),
                          ([&](const Place& on) { return args(on, "out"); }), rounding_of(dtype));
          }
      }
}

TEST(CudaOps, kv_rows) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, kv, group, head_size, parts] :
         {std::tuple{1, 1, 1, 2, 1}, {33, 2, 3, 64, 2}, {7, 3, 1, 10, 3}, {130, 8, 4, 128, 4}})
      for (const QkvOrder order : kOrders) {
        const int first = kv / 2;  // of the heads in rows of keys and values
        const int64_t width = int64_t{kv} * (group + 2) * head_size, kv_width = int64_t{kv - first} * 2 * head_size;
        const std::string what = fmt::format("{} rows {} heads {} x {} HS {}, {}", enum_name(dtype), rows, kv, group,
                                             head_size, enum_name(order));
        const Buffer qkv(dtype, {rows, width}, random_values(rows * width, "qkv"));
        TRI_COMPARE(
            pack_kv, what, (Operands{{"kv", Buffer(dtype, {rows, kv_width})}, {"qkv", qkv}}),
            TRI_MAKE((PackKv{.order = order, .first_kv_head = first, .num_kv_heads = kv, .group = group}), kv, qkv),
            rounding_of(dtype));
        const Buffer gathered(dtype, {parts, rows, kv_width}, random_values(parts * rows * kv_width, "parts"));
        TRI_COMPARE(unpack_kv, what, (Operands{{"qkv", qkv}, {"parts", gathered}}),
                    TRI_MAKE((UnpackKv{.order = order, .first_kv_head = first, .num_kv_heads = kv, .group = group}),
                             qkv, parts),
                    rounding_of(dtype));
      }
}

TEST(CudaOps, qk_norm_rope) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [seq_len, kv, group, half] : {std::tuple{3, 1, 1, 1},
                                                   {16, 2, 3, 32},
                                                   {40, 3, 1, 5},
                                                   {7, 3, 2, 12},
                                                   {65, 2, 4, 64},
                                                   {257, 8, 4, 64},
                                                   {33, 4, 2, 48},
                                                   {19, 1, 8, 128},
                                                   {5, 2, 1, 256}}) {
      const int64_t head_size = 2 * half, width = int64_t{kv} * (group + 2) * head_size, rows = 2 * seq_len;
      std::vector<float> table(static_cast<size_t>(seq_len) * half * 2);
      fill_rope_table(table.data(), seq_len, 2 * half, kAngles);
      const Buffer angles(Dtype::kF32, {seq_len, half, 2}, Values(table.begin(), table.end()));
      const auto matrix = [&, rows = rows](const char* name) {
        return Buffer(dtype, {rows, width}, random_values(rows * width, name));
      };
      const auto vector = [&](Dtype type, const char* name) {
        return Buffer(type, {head_size}, random_values(head_size, name));
      };
      const Buffer poisoned(dtype, {rows, width});
      for (const QkvOrder from : kOrders)
        for (const QkvOrder to : kOrders) {
          const std::string what = fmt::format("{} T {} heads {} x {} HS {}, {} to {}", enum_name(dtype), seq_len, kv,
                                               group, head_size, enum_name(from), enum_name(to));
          TRI_COMPARE(qk_norm_rope_forward, what,
                      (Operands{{"out", poisoned},
                                {"inp", matrix("inp")},
                                {"query_weight", vector(dtype, "query_weight")},
                                {"key_weight", vector(dtype, "key_weight")},
                                {"table", angles}}),
                      TRI_MAKE((QkNormRopeForward{.offset = from == to ? 1.0f : 0.0f,
                                                  .num_kv_heads = kv,
                                                  .group = group,
                                                  .out_order = to,
                                                  .inp_order = from}),
                               out, inp, query_weight, key_weight, table),
                      rounding_of(dtype));
          const auto backward = TRI_MAKE((QkNormRopeBackward{.offset = from == to ? 1.0f : 0.0f,
                                                             .num_kv_heads = kv,
                                                             .group = group,
                                                             .dout_order = from,
                                                             .dinp_order = to}),
                                         dinp, dquery_weight, dkey_weight, dout, inp, query_weight, key_weight, table);
          Operands operands{{"dinp", poisoned},
                            {"dquery_weight", vector(Dtype::kF32, "dquery_weight")},
                            {"dkey_weight", vector(Dtype::kF32, "dkey_weight")},
                            {"dout", matrix("dout")},
                            {"inp", matrix("inp")},
                            {"query_weight", vector(dtype, "query_weight")},
                            {"key_weight", vector(dtype, "key_weight")},
                            {"table", angles}};
          // Sums over all heads and rows, added in a different order.
          const Comparisons comparisons(rounding_of(dtype),
                                        {{"dquery_weight", elements(3e-5)}, {"dkey_weight", elements(3e-5)}});
          TRI_COMPARE(qk_norm_rope_backward, what, operands, backward, comparisons);
          if (from == to)
            TRI_COMPARE(qk_norm_rope_backward, what + " in place", operands, in_place(backward), comparisons);
        }
    }
}

TEST(CudaOps, qk_norm_full) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [seq_len, kv, group, half] :
         {std::tuple{3, 1, 1, 1}, {16, 2, 3, 32}, {40, 3, 1, 5}, {65, 2, 4, 64}, {257, 16, 1, 64}, {5, 2, 1, 256}}) {
      const int64_t head_size = 2 * half, width = int64_t{kv} * (group + 2) * head_size, rows = 2 * seq_len;
      const int64_t keys = kv * head_size, queries = group * keys;
      std::vector<float> table(static_cast<size_t>(seq_len) * half * 2);
      fill_rope_table(table.data(), seq_len, 2 * half, kAngles);
      const Buffer angles(Dtype::kF32, {seq_len, half, 2}, Values(table.begin(), table.end()));
      const auto matrix = [&, rows = rows](const char* name) {
        return Buffer(dtype, {rows, width}, random_values(rows * width, name));
      };
      const auto vector = [](Dtype type, int64_t n, const char* name) {
        return Buffer(type, {n}, random_values(n, name));
      };
      const Buffer poisoned(dtype, {rows, width}), sums(Dtype::kF32, {rows, 2});
      Values positive(static_cast<size_t>(2 * rows));
      for (size_t i = 0; i < positive.size(); ++i) positive[i] = 0.5 + 0.01 * static_cast<double>(i % 17);
      const Buffer given(Dtype::kF32, {rows, 2}, positive);  // squares per element, or rstd
      Values of_all = positive;
      for (double& value : of_all) value *= static_cast<double>(queries);
      const Buffer squares(Dtype::kF32, {rows, 2}, of_all);
      const Comparisons with_sums(rounding_of(dtype), {{"sums", elements(3e-5)}, {"rstd", elements(3e-6)}});
      for (const QkvOrder from : kOrders)
        for (const QkvOrder to : kOrders) {
          const std::string what = fmt::format("{} T {} heads {} x {} HS {}, {} to {}", enum_name(dtype), seq_len, kv,
                                               group, head_size, enum_name(from), enum_name(to));
          TRI_COMPARE(qk_norm_squares, what, (Operands{{"sums", sums}, {"inp", matrix("inp")}}),
                      TRI_MAKE((QkNormSquares{.num_kv_heads = kv, .group = group, .order = from}), sums, inp),
                      with_sums);
          Operands operands{{"out", poisoned},
                            {"rstd", sums},
                            {"squares", squares},
                            {"inp", matrix("inp")},
                            {"query_weight", vector(dtype, queries, "query_weight")},
                            {"key_weight", vector(dtype, keys, "key_weight")},
                            {"table", angles}};
          TRI_COMPARE(qk_norm_full_forward, what, operands,
                      TRI_MAKE((QkNormFullForward{.query_width = 2 * queries,
                                                  .key_width = 3 * keys,
                                                  .num_kv_heads = kv,
                                                  .group = group,
                                                  .out_order = to,
                                                  .inp_order = from}),
                               out, rstd, squares, inp, query_weight, key_weight, table),
                      with_sums);
          Operands of_products{{"sums", sums},
                               {"dout", matrix("dout")},
                               {"inp", matrix("inp")},
                               {"query_weight", vector(dtype, queries, "query_weight")},
                               {"key_weight", vector(dtype, keys, "key_weight")},
                               {"table", angles}};
          TRI_COMPARE(
              qk_norm_products, what, of_products,
              TRI_MAKE((QkNormProducts{.num_kv_heads = kv, .group = group, .dout_order = from, .inp_order = to}), sums,
                       dout, inp, query_weight, key_weight, table),
              with_sums);
          const auto backward =
              TRI_MAKE((QkNormFullBackward{.query_width = 2 * queries,
                                           .key_width = 3 * keys,
                                           .num_kv_heads = kv,
                                           .group = group,
                                           .dout_order = from,
                                           .dinp_order = to}),
                       dinp, dquery_weight, dkey_weight, rstd, products, dout, inp, query_weight, key_weight, table);
          Operands of_backward{{"dinp", poisoned},
                               {"dquery_weight", vector(Dtype::kF32, queries, "dquery_weight")},
                               {"dkey_weight", vector(Dtype::kF32, keys, "dkey_weight")},
                               {"rstd", given},
                               {"products", squares},
                               {"dout", matrix("dout")},
                               {"inp", matrix("inp")},
                               {"query_weight", vector(dtype, queries, "query_weight")},
                               {"key_weight", vector(dtype, keys, "key_weight")},
                               {"table", angles}};
          // Sums over all rows, added in a different order.
          const Comparisons comparisons(rounding_of(dtype),
                                        {{"dquery_weight", elements(3e-5)}, {"dkey_weight", elements(3e-5)}});
          TRI_COMPARE(qk_norm_full_backward, what, of_backward, backward, comparisons);
          if (from == to)
            TRI_COMPARE(qk_norm_full_backward, what + " in place", of_backward, in_place(backward), comparisons);
        }
    }
}

struct CrossEntropyCase {
  Dtype dtype;
  int64_t rows, columns;  // per rank: R, Vl
  int vocab;
  int tp;
  LogitGradient gradient;
  float z_loss = 0.0f, softcap = 0.0f;
};

// The statistics and the loss of each of tp ranks, with the stats gathered in between.
void compare_cross_entropy(const CrossEntropyCase& c) {
  Values target_values = random_integers(c.rows, c.vocab, "targets");
  for (size_t r = 4; r < target_values.size(); r += 5) target_values[r] = kNoTarget;
  const Buffer targets(Dtype::kI32, {c.rows}, target_values);
  const auto logits_of = [&](int rank) {
    return Buffer(c.dtype, {c.rows, c.columns}, random_values(c.rows * c.columns, fmt::format("logits {}", rank), 3.0));
  };
  const auto name = [&](int rank) {
    return fmt::format("{} R {} Vl {} of {}, tp rank {} of {}, z-loss {}, softcap {}", enum_name(c.dtype), c.rows,
                       c.columns, c.vocab, rank, c.tp, c.z_loss, c.softcap);
  };
  Values gathered;
  for (int rank = 0; rank < c.tp; ++rank) {
    const Operands done = TRI_COMPARE(
        cross_entropy_stats, name(rank),
        (Operands{{"stats", Buffer(Dtype::kF32, {c.rows, 3})}, {"logits", logits_of(rank)}, {"targets", targets}}),
        TRI_MAKE((CrossEntropyStats{
                     .first_token = static_cast<int>(rank * c.columns), .vocab = c.vocab, .softcap = c.softcap}),
                 stats, logits, targets),
        elements(2e-5));
    const Values stats = done.front().second.values();
    gathered.insert(gathered.end(), stats.begin(), stats.end());
  }
  const Buffer stats(Dtype::kF32, {c.tp, c.rows, 3}, gathered), loss(Dtype::kF32, {1}, {2.0}), absent;
  for (int rank = 0; rank < c.tp; ++rank)
    for (const bool full : {false, true}) {
      if (full && c.tp > 1) continue;  // a rank that holds the full vocabulary skips the statistics
      TRI_COMPARE(
          cross_entropy_loss, name(rank) + (full ? ", full" : ""),
          (Operands{
              {"loss", loss}, {"logits", logits_of(rank)}, {"stats", full ? absent : stats}, {"targets", targets}}),
          TRI_MAKE((CrossEntropyLoss{.first_token = static_cast<int>(rank * c.columns),
                                     .vocab = c.vocab,
                                     .gradient = c.gradient,
                                     .grad_scale = 0.25f,
                                     .z_loss = c.z_loss,
                                     .softcap = c.softcap}),
                   loss, logits, stats, targets),
          rounding_of(c.dtype, 5e-5));
    }
}

TEST(CudaOps, cross_entropy) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto gradient : {LogitGradient::kNone, LogitGradient::kInPlace})
      for (const auto& [rows, columns, vocab] : {std::tuple<int64_t, int64_t, int>{1, 1, 1},
                                                 {5, 7, 6},
                                                 {64, 128, 100},
                                                 {33, 1000, 1000},
                                                 {9, 264, 257},
                                                 {16, 50304, 50257},
                                                 {3, 120000, 119999},
                                                 {40, 128256, 128256},
                                                 {150, 129000, 128999},
                                                 {2, 229384, 229377},
                                                 {2, 460000, 459999}})
        compare_cross_entropy({dtype, rows, columns, vocab, 1, gradient});
}

// Rows that one block stages, that a cluster stages, that are read twice, and that are split. The last factor makes the
// gradient of the softmax negative where the log of its denominator is below -1. No vocabulary has one token: its
// gradient would be the rounding error of p - 1 plus a small number.
TEST(CudaOps, cross_entropy_with_z_loss) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const float z_loss : {1e-4f, 0.5f})
      for (const auto& [rows, columns, vocab, tp] : {std::tuple<int64_t, int64_t, int, int>{5, 7, 6, 1},
                                                     {1, 3, 2, 1},
                                                     {16, 50304, 50257, 1},
                                                     {40, 128256, 128256, 1},
                                                     {2, 460000, 459999, 1},
                                                     {64, 64, 100, 2}})
        compare_cross_entropy({dtype, rows, columns, vocab, tp, LogitGradient::kInPlace, z_loss});
}

TEST(CudaOps, cross_entropy_with_softcap) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [softcap, z_loss] : {std::pair{30.0f, 0.0f}, {2.0f, 1e-2f}})
      for (const auto& [rows, columns, vocab, tp] : {std::tuple<int64_t, int64_t, int, int>{5, 7, 6, 1},
                                                     {16, 50304, 50257, 1},
                                                     {40, 128256, 128256, 1},
                                                     {2, 460000, 459999, 1},
                                                     {64, 64, 100, 2}})
        for (const auto gradient : {LogitGradient::kNone, LogitGradient::kInPlace})
          compare_cross_entropy({dtype, rows, columns, vocab, tp, gradient, z_loss, softcap});
}

// first_token > 0: targets on another rank, padding on the last rank, and a rank with only padding.
TEST(CudaOps, cross_entropy_split_over_tp) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto gradient : {LogitGradient::kNone, LogitGradient::kInPlace})
      for (const auto& [rows, columns, vocab, tp] : {std::tuple<int64_t, int64_t, int, int>{1, 1, 2, 2},
                                                     {5, 7, 13, 2},
                                                     {64, 64, 100, 2},
                                                     {33, 64, 100, 3},
                                                     {9, 264, 1050, 4},
                                                     {16, 25152, 50257, 2}})
        compare_cross_entropy({dtype, rows, columns, vocab, tp, gradient});
}

TEST(CudaOps, normal_values) {
  TRI_NEEDS_GPU();
  // One unit in the last place of the normal number is at most two of its multiple.
  constexpr double kLastBits = 2.5e-7;
  constexpr uint64_t kKey = 0x123456789ABCDEF0;
  struct Share {
    int64_t block, stride, offset, valid;
  };
  for (const Dtype dtype : kTypes)
    for (const auto& [block, stride, offset, valid] :
         {Share{1, 1, 0, 900}, {7, 28, 21, 500}, {256, 512, 256, int64_t{1} << 60}, {5000, 5000, 0, 0}})
      for (const int64_t begin : {0, 1, 255, 1000})
        for (const int64_t count : {1, 3, 257, 2000}) {
          const std::string what = fmt::format("{} n {} from {} in {} every {} at {}, {} valid", enum_name(dtype),
                                               count, begin, block, stride, offset, valid);
          const NormalValues values{.key = kKey,
                                    .scale = 0.02f,
                                    .begin = begin,
                                    .block = block,
                                    .stride = stride,
                                    .offset = offset,
                                    .valid = valid};
          TRI_COMPARE(normal_values, what, (Operands{{"out", Buffer(dtype, {count})}}), ([&](const Place& on) {
                        NormalValues v = values;
                        v.out = on("out");
                        return v;
                      }),
                      rounding_of(dtype, kLastBits));
        }
  // Of many elements one in a hundred thousand may differ, in the last bit (the scale is a power of two).
  constexpr int64_t kCount = 3000001;
  for (const Dtype dtype : kTypes) {
    const Buffer host(dtype, {kCount});
    const DeviceBuffer device(host);
    NormalValues v{
        .out = host, .key = kKey, .scale = 0.25f, .begin = 77, .block = 1000, .stride = 4000, .offset = 3000};
    cpu::normal_values(v);
    v.out = device;
    cuda::normal_values(v, test_stream());
    const Values expected = host.values(), actual = device.values(host);
    const double last_bit = dtype == Dtype::kF32 ? 0x1p-23 : 0x1p-7;
    int64_t differ = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_LE(std::abs(actual[i] - expected[i]), last_bit * std::abs(expected[i])) << i;
      differ += actual[i] != expected[i];
    }
    EXPECT_LE(differ, kCount / 100000);
  }
}

}  // namespace
}  // namespace tri::test
