// Every CUDA operation against its CPU reference: fresh inputs, poisoned outputs, twice for determinism.
#include <functional>
#include <memory>

#include "kernels/core/dims.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/scalar_attention.h"
#include "tests/cuda/cuda_test.h"

namespace tri::test {
namespace {

using Operand = std::function<Tensor(size_t)>;  // the i-th buffer's tensor, on the host or on the device

constexpr double kWholeTolerance = 2e-2;

// `make(operand)` builds the op's arguments; all `buffers` are compared after the call.
template <class Make, class Cpu, class Cuda>
void expect_cuda_matches_cpu(const std::string& what, std::vector<Buffer> buffers, Make make, Cpu cpu_op, Cuda cuda_op,
                             double tolerance) {
  SCOPED_TRACE(what);
  std::vector<std::unique_ptr<DeviceBuffer>> once, twice;
  for (const Buffer& buffer : buffers) {
    once.push_back(std::make_unique<DeviceBuffer>(buffer));
    twice.push_back(std::make_unique<DeviceBuffer>(buffer));
  }
  const std::vector<Buffer> shapes = buffers;
  cpu_op(make([&](size_t i) { return Tensor(buffers[i]); }));
  cuda_op(make([&](size_t i) { return Tensor(*once[i]); }), nullptr);
  cuda_op(make([&](size_t i) { return Tensor(*twice[i]); }), nullptr);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (Tensor(buffers[i]).empty()) continue;
    const Values expected = buffers[i].values(), actual = once[i]->values(shapes[i]);
    const Values again = twice[i]->values(shapes[i]);
    for (size_t e = 0; e < expected.size(); ++e) {
      ASSERT_EQ(std::isnan(expected[e]), std::isnan(actual[e])) << "operand " << i << " element " << e;
      if (!std::isnan(actual[e])) {
        ASSERT_EQ(actual[e], again[e]) << "not deterministic: operand " << i << " element " << e;
      }
    }
    Values clean_expected, clean_actual;
    for (size_t e = 0; e < expected.size(); ++e)
      if (std::isfinite(expected[e]) && std::isfinite(actual[e])) {
        clean_expected.push_back(expected[e]);
        clean_actual.push_back(actual[e]);
      }
    if (clean_expected.empty()) continue;
    // Kernels that round their probabilities to bf16 differ by elements as large as a typical one: judged as a whole.
    const Values difference = minus(clean_actual, clean_expected);
    const double size = std::sqrt(dot(clean_expected, clean_expected));
    if (tolerance >= kWholeTolerance)
      EXPECT_LE(std::sqrt(dot(difference, difference)), tolerance * size) << "operand " << i;
    else
      expect_close(fmt::format("operand {}", i), clean_actual, clean_expected, tolerance);
  }
}
#define TRI_COMPARE(op, what, buffers, make, tolerance)             \
  expect_cuda_matches_cpu(                                          \
      what, buffers, make, [](const auto& args) { cpu::op(args); }, \
      [](const auto& args, cudaStream_t stream) { cuda::op(args, stream); }, tolerance)

const Dtype kTypes[] = {Dtype::kF32, Dtype::kBF16};
double tolerance_of(Dtype dtype, double fp32 = 2e-5) { return dtype == Dtype::kF32 ? fp32 : kBf16Tolerance; }

TEST(CudaOps, norm_forward_and_backward) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const Norm kind : {Norm::kLayerNorm, Norm::kRmsNorm})
      for (const int64_t parts : {0, 1, 2, 4})  // of add and dout; 0: without what is optional
        for (const auto& [rows, width] :
             {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {70, 64}, {17, 257}, {130, 768}, {9, 5120}, {9, 12288}}) {
          const bool layernorm = kind == Norm::kLayerNorm, rich = parts > 0;
          const std::string what =
              fmt::format("{} {} R {} C {} {} parts", enum_name(dtype), enum_name(kind), rows, width, parts);
          const auto sum_of_parts = [&, rows = rows, width = width](const char* name) {
            const Values values = random_values(std::max<int64_t>(parts, 1) * rows * width, name);
            return parts > 1 ? Buffer(dtype, {parts, rows, width}, values) : Buffer(dtype, {rows, width}, values);
          };
          const auto matrix = [&, rows = rows, width = width](const char* name) {
            return Buffer(dtype, {rows, width}, random_values(rows * width, name));
          };
          const auto vector = [&, width = width](Dtype type, const char* name) {
            return Buffer(type, {width}, random_values(width, name));
          };
          const Buffer poisoned(dtype, {rows, width}), statistics(Dtype::kF32, {rows});
          std::vector<Buffer> f = {poisoned,
                                   layernorm ? statistics : Buffer(),
                                   statistics,
                                   rich ? poisoned : Buffer(),
                                   matrix("inp"),
                                   rich ? sum_of_parts("add") : Buffer(),
                                   rich ? vector(dtype, "ab") : Buffer(),
                                   vector(dtype, "w"),
                                   rich && layernorm ? vector(dtype, "b") : Buffer()};
          TRI_COMPARE(norm_forward, what, f, ([&](const Operand& at) {
                        return NormForward{.kind = kind,
                                           .eps = 1e-5f,
                                           .out = at(0),
                                           .mean = at(1),
                                           .rstd = at(2),
                                           .sum = at(3),
                                           .inp = at(4),
                                           .add = at(5),
                                           .add_bias = at(6),
                                           .weight = at(7),
                                           .bias = at(8)};
                      }),
                      tolerance_of(dtype));
          if (width == 1) continue;  // the gradient of a norm of one element is rounding noise
          Values rstd(static_cast<size_t>(rows)), mean(rstd.size());
          for (size_t r = 0; r < rstd.size(); ++r) rstd[r] = 0.5 + 0.01 * static_cast<double>(r % 7), mean[r] = 0.1;
          std::vector<Buffer> b = {poisoned,
                                   rich ? matrix("dres") : Buffer(),
                                   vector(Dtype::kF32, "dw"),
                                   rich && layernorm ? vector(Dtype::kF32, "db") : Buffer(),
                                   sum_of_parts("dout"),
                                   matrix("inp"),
                                   vector(dtype, "w"),
                                   layernorm ? Buffer(Dtype::kF32, {rows}, mean) : Buffer(),
                                   Buffer(Dtype::kF32, {rows}, rstd)};
          TRI_COMPARE(norm_backward, what, b, ([&](const Operand& at) {
                        return NormBackward{.kind = kind,
                                            .dinp = at(0),
                                            .dresidual = at(1),
                                            .dweight = at(2),
                                            .dbias = at(3),
                                            .dout = at(4),
                                            .inp = at(5),
                                            .weight = at(6),
                                            .mean = at(7),
                                            .rstd = at(8)};
                      }),
                      tolerance_of(dtype));
          std::vector<Buffer> r = {poisoned, matrix("inp"), sum_of_parts("add"), rich ? vector(dtype, "ab") : Buffer()};
          TRI_COMPARE(residual_add, what, r, ([&](const Operand& at) {
                        return ResidualAdd{.out = at(0), .inp = at(1), .add = at(2), .add_bias = at(3)};
                      }),
                      tolerance_of(dtype));
        }
}

TEST(CudaOps, activation_elementwise_and_bias) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 64}, {200, 264}, {300, 1000}}) {
      const std::string what = fmt::format("{} R {} F {}", enum_name(dtype), rows, width);
      const int64_t n = rows * width;
      for (const Activation kind : {Activation::kGelu, Activation::kSwiglu}) {
        const int64_t inner = width * (kind == Activation::kSwiglu ? 2 : 1);
        const Buffer inp(dtype, {rows, inner}, random_values(rows * inner, "inp", 2.0));
        std::vector<Buffer> f = {Buffer(dtype, {rows, width}), inp};
        TRI_COMPARE(activation_forward, what, f,
                    ([&](const Operand& at) { return ActivationForward{.kind = kind, .out = at(0), .inp = at(1)}; }),
                    tolerance_of(dtype));
        std::vector<Buffer> b = {Buffer(dtype, {rows, inner}), Buffer(dtype, {rows, width}, random_values(n, "dout")),
                                 inp};
        TRI_COMPARE(activation_backward, what, b, ([&](const Operand& at) {
                      return ActivationBackward{.kind = kind, .dinp = at(0), .dout = at(1), .inp = at(2)};
                    }),
                    tolerance_of(dtype));
      }
      std::vector<Buffer> bias = {Buffer(Dtype::kF32, {width}, random_values(width, "dbias")),
                                  Buffer(dtype, {rows, width}, random_values(n, "dout"))};
      TRI_COMPARE(bias_backward, what, bias,
                  ([&](const Operand& at) { return BiasBackward{.dbias = at(0), .dout = at(1)}; }),
                  tolerance_of(dtype));
      for (const Dtype to : kTypes) {
        std::vector<Buffer> c = {Buffer(to, {n}), Buffer(dtype, {n}, random_values(n, "inp"))};
        TRI_COMPARE(cast, what, c, ([&](const Operand& at) { return Cast{.out = at(0), .inp = at(1)}; }), 0.0);
      }
      std::vector<Buffer> sum = {Buffer(dtype, {n}, random_values(n, "inout")),
                                 Buffer(dtype, {n}, random_values(n, "inp"))};
      TRI_COMPARE(accumulate, what, sum, ([&](const Operand& at) { return Accumulate{.inout = at(0), .inp = at(1)}; }),
                  tolerance_of(dtype));
      for (const int64_t num_parts : {1, 2, 5})
        for (const SumInto into : {SumInto::kOverwrite, SumInto::kAdd}) {
          std::vector<Buffer> parts = {
              into == SumInto::kAdd ? Buffer(dtype, {n}, random_values(n, "out")) : Buffer(dtype, {n}),
              Buffer(dtype, {num_parts, n}, random_values(num_parts * n, "parts"))};
          TRI_COMPARE(sum_parts, fmt::format("{} P {}", what, num_parts), parts,
                      ([&](const Operand& at) { return SumParts{.into = into, .out = at(0), .parts = at(1)}; }), 0.0);
        }
    }
}

TEST(CudaOps, embedding_position_and_rope) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, width, vocab] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {7, 5, 3}, {300, 65, 40}, {1000, 40, 2}, {2000, 96, 700}})
      for (const int first : {0, 2}) {
        const std::string what = fmt::format("{} R {} C {} V {} from {}", enum_name(dtype), rows, width, vocab, first);
        const Buffer tokens(Dtype::kI32, {rows},
                            random_integers(rows, vocab + 3, "tokens"));  // some lie outside this share
        std::vector<Buffer> f = {Buffer(dtype, {rows, width}), tokens,
                                 Buffer(dtype, {vocab, width}, random_values(vocab * width, "w"))};
        TRI_COMPARE(embedding_forward, what, f, ([&](const Operand& at) {
                      return EmbeddingForward{.out = at(0), .tokens = at(1), .weight = at(2), .first_token = first};
                    }),
                    0.0);
        std::vector<Buffer> b = {Buffer(Dtype::kF32, {vocab, width}, random_values(vocab * width, "dw")),
                                 Buffer(dtype, {rows, width}, random_values(rows * width, "dout")), tokens};
        TRI_COMPARE(embedding_backward, what, b, ([&](const Operand& at) {
                      return EmbeddingBackward{.dweight = at(0), .dout = at(1), .tokens = at(2), .first_token = first};
                    }),
                    kFloatTolerance);
        std::vector<Buffer> p = {Buffer(dtype, {rows, width}, random_values(rows * width, "x")),
                                 Buffer(dtype, {vocab, width}, random_values(vocab * width, "pos"))};
        TRI_COMPARE(position_forward, what, p, ([&](const Operand& at) {
                      return PositionForward{.inout = at(0), .weight = at(1), .first_row = first * 5};
                    }),
                    0.0);
        std::vector<Buffer> q = {Buffer(Dtype::kF32, {vocab, width}, random_values(vocab * width, "dpos")),
                                 Buffer(dtype, {rows, width}, random_values(rows * width, "dx"))};
        TRI_COMPARE(position_backward, what, q, ([&](const Operand& at) {
                      return PositionBackward{.dweight = at(0), .dout = at(1), .first_row = first * 5};
                    }),
                    kFloatTolerance);
      }
  for (const Dtype dtype : kTypes)
    for (const auto& [seq_len, kv, group, half] : {std::tuple{3, 1, 1, 1}, {16, 2, 3, 32}, {40, 3, 1, 5}})
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const int64_t width = int64_t{kv} * (group + 2) * 2 * half, rows = 2 * seq_len;
        std::vector<float> table(static_cast<size_t>(seq_len) * half * 2);
        fill_rope_table(table.data(), seq_len, 2 * half, 10000);
        std::vector<Buffer> r = {Buffer(dtype, {rows, width}, random_values(rows * width, "qkv")),
                                 Buffer(Dtype::kF32, {seq_len, half, 2}, Values(table.begin(), table.end()))};
        TRI_COMPARE(rope, "rope", r, ([&](const Operand& at) {
                      return Rope{.pass = pass, .qkv = at(0), .table = at(1), .num_kv_heads = kv, .group = group};
                    }),
                    tolerance_of(dtype));
      }
}

TEST(CudaOps, cross_entropy) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, stride, vocab] : {std::tuple<int64_t, int64_t, int>{1, 1, 1},
                                              {5, 7, 6},
                                              {64, 128, 100},
                                              {33, 1000, 1000},
                                              {9, 264, 257},
                                              {16, 50304, 50257},
                                              {3, 120000, 119999}})
      for (const auto gradient : {LogitGradient::kNone, LogitGradient::kInPlace}) {
        const std::string what = fmt::format("{} R {} V {} of {}", enum_name(dtype), rows, stride, vocab);
        const Buffer logits(dtype, {rows, stride}, random_values(rows * stride, "logits", 3.0)),
            targets(Dtype::kI32, {rows}, random_integers(rows, vocab, "targets"));
        std::vector<Buffer> s = {Buffer(Dtype::kF32, {rows, 3}), logits, targets};
        const auto make_stats = [&, vocab = vocab](const Operand& at) {
          return CrossEntropyStats{.stats = at(0), .logits = at(1), .targets = at(2), .vocab = vocab};
        };
        TRI_COMPARE(cross_entropy_stats, what, s, make_stats, 2e-5);
        Buffer stats = s[0];
        cpu::cross_entropy_stats(make_stats([&](size_t i) { return i == 0 ? Tensor(stats) : Tensor(s[i]); }));
        std::vector<Buffer> l = {Buffer(Dtype::kF32, {1}, {2.0}), logits,
                                 Buffer(Dtype::kF32, {1, rows, 3}, stats.values()), targets};
        TRI_COMPARE(cross_entropy_loss, what, l, ([&, vocab = vocab](const Operand& at) {
                      return CrossEntropyLoss{.loss = at(0),
                                              .logits = at(1),
                                              .stats = at(2),
                                              .targets = at(3),
                                              .vocab = vocab,
                                              .gradient = gradient,
                                              .grad_scale = 0.25f};
                    }),
                    tolerance_of(dtype, 5e-5));
        // The whole vocabulary here: no statistics.
        std::vector<Buffer> w = {l[0], logits, targets};
        TRI_COMPARE(cross_entropy_loss, what + ", whole", w, ([&, vocab = vocab](const Operand& at) {
                      return CrossEntropyLoss{.loss = at(0),
                                              .logits = at(1),
                                              .targets = at(2),
                                              .vocab = vocab,
                                              .gradient = gradient,
                                              .grad_scale = 0.25f};
                    }),
                    tolerance_of(dtype, 5e-5));
      }
}

TEST(CudaOps, optimizers_and_sums) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : {1, 5, 700}) {
    const int64_t n = blocks * kBlock;
    constexpr int64_t kTensors = 4;
    Values owners;
    for (int64_t b = 0; b < blocks; ++b) {  // padding behind each tensor, where there is room
      const int64_t tensor = b * kTensors / blocks;
      const bool padding = blocks > kTensors && (b + 1) * kTensors / blocks != tensor;
      owners.push_back(padding ? -1 : static_cast<double>(tensor));
    }
    const auto floats = [&](const char* name, double scale = 1) {
      return Buffer(Dtype::kF32, {n}, random_values(n, name, scale));
    };
    Values squares = random_values(n, "v");
    for (double& v : squares) v = v * v;
    const Buffer owner(Dtype::kI32, {blocks}, owners), decay(Dtype::kF32, {kTensors}, {0.1, -1, 0, 0.2}),
        scale(Dtype::kF32, {1}, {0.5});
    const auto moments = [](const Operand& at) {
      return Moments{.master = at(0),
                     .exp_avg = at(1),
                     .exp_avg_sq = at(2),
                     .grad = at(3),
                     .grad_scale = at(4),
                     .block_tensor = at(5),
                     .decay = at(6),
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .eps = 1e-6f,
                     .bias_correction1 = 0.3f,
                     .bias_correction2 = 0.2f};
    };
    for (const bool mixed : {false, true}) {
      std::vector<Buffer> a = {
          floats("w"), floats("m"), Buffer(Dtype::kF32, {n}, squares),           floats("g"), scale,
          owner,       decay,       mixed ? Buffer(Dtype::kBF16, {n}) : Buffer()};
      TRI_COMPARE(adamw_update, "adamw", a,
                  ([&](const Operand& at) { return AdamwUpdate{.moments = moments(at), .param = at(7), .lr = 0.01f}; }),
                  mixed ? kBf16Tolerance : 2e-5);
      std::vector<Buffer> p = {floats("w"),
                               mixed ? Buffer(Dtype::kBF16, {n}) : Buffer(),
                               floats("d"),
                               Buffer(Dtype::kF32, {kTensors}, {4, 9, 1, 0}),
                               Buffer(Dtype::kF32, {kTensors}, {1, 2, 0.5, 3}),
                               owner,
                               decay,
                               scale};
      TRI_COMPARE(lamb_apply, "lamb", p, ([&](const Operand& at) {
                    return LambApply{.master = at(0),
                                     .param = at(1),
                                     .direction = at(2),
                                     .weight_sumsq = at(3),
                                     .direction_sumsq = at(4),
                                     .grad_scale = at(7),
                                     .block_tensor = at(5),
                                     .decay = at(6),
                                     .lr = 0.01f};
                  }),
                  mixed ? kBf16Tolerance : 2e-5);
    }
    std::vector<Buffer> d = {floats("w"), floats("m"), Buffer(Dtype::kF32, {n}, squares), floats("g"), scale,
                             owner,       decay};
    TRI_COMPARE(lamb_direction, "lamb", d, ([&](const Operand& at) { return LambDirection{.moments = moments(at)}; }),
                2e-5);
    std::vector<Buffer> s = {Buffer(Dtype::kF32, {kTensors}, {1, 2, 3, 4}), floats("x"), owner};
    TRI_COMPARE(tensor_sumsq, "sumsq", s,
                ([&](const Operand& at) { return TensorSumsq{.sumsq = at(0), .inp = at(1), .block_tensor = at(2)}; }),
                2e-6);
    std::vector<Buffer> w = {Buffer(Dtype::kF32, {1}, {3.0}), floats("x"), floats("weights")};
    TRI_COMPARE(weighted_sum, "weighted sum", w,
                ([&](const Operand& at) { return WeightedSum{.out = at(0), .inp = at(1), .weight = at(2)}; }), 2e-5);
  }
  for (const double norm_sq : {0.0, 0.25, 4.0, static_cast<double>(NAN)})
    for (const float most : {0.0f, 1.0f}) {
      std::vector<Buffer> c = {Buffer(Dtype::kF32, {1}), Buffer(Dtype::kF32, {1}), Buffer(Dtype::kF32, {1}, {norm_sq})};
      TRI_COMPARE(clip_scale, fmt::format("clip {} {}", norm_sq, most), c, ([&](const Operand& at) {
                    return ClipScale{.scale = at(0), .norm = at(1), .norm_sq = at(2), .max_norm = most};
                  }),
                  1e-6);
    }
}

TEST(CudaOps, normal_values) {
  TRI_NEEDS_GPU();
  // A last bit of the normal number is at most two of the product's.
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
          std::vector<Buffer> n = {Buffer(dtype, {count})};
          const NormalValues values{.key = kKey,
                                    .scale = 0.02f,
                                    .begin = begin,
                                    .block = block,
                                    .stride = stride,
                                    .offset = offset,
                                    .valid = valid};
          TRI_COMPARE(normal_values, what, n, ([&](const Operand& at) {
                        NormalValues v = values;
                        v.out = at(0);
                        return v;
                      }),
                      tolerance_of(dtype, kLastBits));
        }
  // Many elements: one in a hundred thousand may differ, by the last bit (the scale is a power of two).
  constexpr int64_t kCount = 3000001;
  for (const Dtype dtype : kTypes) {
    const Buffer host(dtype, {kCount});
    const DeviceBuffer device(host);
    NormalValues v{
        .out = host, .key = kKey, .scale = 0.25f, .begin = 77, .block = 1000, .stride = 4000, .offset = 3000};
    cpu::normal_values(v);
    v.out = device;
    cuda::normal_values(v, nullptr);
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

void compare_attention(Dtype dtype, int T, int kv, int group, int HS, int window, AttentionKernel kernel) {
  const std::string what =
      fmt::format("{} T {} heads {} x {} HS {} W {} {}", enum_name(dtype), T, kv, group, HS, window, enum_name(kernel));
  const int64_t rows = 2 * T, width = int64_t{kv} * (group + 2) * HS, out_width = int64_t{kv} * group * HS;
  const float scale = 1.0f / std::sqrt(static_cast<float>(HS));
  const Buffer qkv(dtype, {rows, width}, random_values(rows * width, "qkv")),
      dout(dtype, {rows, out_width}, random_values(rows * out_width, "dout"));
  const Buffer out(dtype, {rows, out_width}), lse(Dtype::kF32, {2, int64_t{kv} * group, T});
  std::vector<Buffer> f = {out, lse, qkv};
  const auto forward = [&](const Operand& at) {
    return AttentionForward{.out = at(0),
                            .lse = at(1),
                            .qkv = at(2),
                            .seq_len = T,
                            .num_kv_heads = kv,
                            .group = group,
                            .window = window,
                            .scale = scale,
                            .kernel = kernel};
  };
  TRI_COMPARE(attention_forward, what, f, forward, dtype == Dtype::kF32 ? 2e-5 : kWholeTolerance);
  cpu::attention_forward(forward([&](size_t i) { return Tensor(f[i]); }));
  std::vector<Buffer> b = {Buffer(dtype, {rows, width}), dout, f[0], f[1], qkv};
  const Buffer delta(Dtype::kF32, {2, int64_t{kv} * group, T});
  const DeviceBuffer d_delta(delta);
  expect_cuda_matches_cpu(
      what, b,
      [&](const Operand& at) {
        return AttentionBackward{.dqkv = at(0),
                                 .dout = at(1),
                                 .out = at(2),
                                 .lse = at(3),
                                 .qkv = at(4),
                                 .seq_len = T,
                                 .num_kv_heads = kv,
                                 .group = group,
                                 .window = window,
                                 .scale = scale,
                                 .kernel = kernel};
      },
      [&](AttentionBackward args) {
        args.delta = delta;
        cpu::attention_backward(args);
      },
      [&](AttentionBackward args, cudaStream_t stream) {
        args.delta = d_delta;
        cuda::attention_backward(args, stream);
      },
      dtype == Dtype::kF32 ? 5e-5 : kWholeTolerance);
}

TEST(CudaOps, scalar_attention) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const int T : {1, 3, 65, 200})
      for (const auto& [kv, group, HS] : {std::tuple{1, 1, 1}, {2, 2, 16}, {1, 4, 65}, {2, 1, 80}, {1, 1, 160}})
        for (const int window : {0, 1, 7, 64, T}) {
          if (window > T) continue;
          compare_attention(dtype, T, kv, group, HS, window, AttentionKernel::kBuiltin);
        }
}

TEST(CudaOps, flash_attention) {
  TRI_NEEDS_GPU();
  for (const int HS : {64, 96, 128})
    for (const auto& [kv, group] : {std::pair{1, 1}, {3, 1}, {2, 2}, {1, 4}})
      for (const int T : {1, 63, 128, 200, 515})
        for (const int window : {0, 1, 50, 64, 130, 300}) {
          if (window > T) continue;
          compare_attention(Dtype::kBF16, T, kv, group, HS, window, AttentionKernel::kBuiltin);
        }
}

TEST(CudaOps, cudnn_attention) {
  TRI_NEEDS_GPU();
  if (!cuda::cudnn_takes(Dtype::kBF16, 64, 1)) GTEST_SKIP() << "skipped: built without cuDNN";
  for (const int T : {64, 128, 200, 512})
    for (const int HS : {64, 96, 128})
      for (const int window : {0, 1, 50, 64})
        compare_attention(Dtype::kBF16, T, 3, 1, HS, window, AttentionKernel::kCudnn);
}

}  // namespace
}  // namespace tri::test
