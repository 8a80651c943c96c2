// gemm through cuBLASLt against the CPU reference.
#include "tests/cuda/cuda_test.h"

namespace tri::test {
namespace {

struct Case {
  int64_t m, n, k;
  bool trans_a, trans_b, bias;
  float beta;
  Dtype inputs, out;
};

void expect_cuda_matches_cpu(const Case& c) {
  SCOPED_TRACE(fmt::format("M {} N {} K {} trans {} {} bias {} beta {} {} into {}", c.m, c.n, c.k, c.trans_a, c.trans_b,
                           c.bias, c.beta, enum_name(c.inputs), enum_name(c.out)));
  const Buffer a = c.trans_a ? Buffer(c.inputs, {c.k, c.m}, random_values(c.k * c.m, "a"))
                             : Buffer(c.inputs, {c.m, c.k}, random_values(c.m * c.k, "a"));
  const Buffer b = c.trans_b ? Buffer(c.inputs, {c.n, c.k}, random_values(c.k * c.n, "b"))
                             : Buffer(c.inputs, {c.k, c.n}, random_values(c.k * c.n, "b"));
  const Buffer bias = c.bias ? Buffer(c.inputs, {c.n}, random_values(c.n, "bias")) : Buffer();
  const Buffer start =
      c.beta == 0 ? Buffer(c.out, {c.m, c.n}) : Buffer(c.out, {c.m, c.n}, random_values(c.m * c.n, "out"));
  const auto args = [&](Tensor out, Tensor a, Tensor b, Tensor bias) {
    return Gemm{.out = out,
                .a = a,
                .b = b,
                .trans_a = c.trans_a ? Trans::kYes : Trans::kNo,
                .trans_b = c.trans_b ? Trans::kYes : Trans::kNo,
                .beta = c.beta,
                .bias = bias};
  };
  const Buffer expected = start;
  cpu::gemm(args(expected, a, b, bias));
  const DeviceBuffer d_a(a), d_b(b), d_bias(bias), d_out(start), d_again(start);
  cuda::gemm(args(d_out, d_a, d_b, d_bias), nullptr);
  cuda::gemm(args(d_again, d_a, d_b, d_bias), nullptr);
  const double tolerance = c.out == Dtype::kBF16 ? kBf16Tolerance : 1e-5 * std::sqrt(static_cast<double>(c.k));
  expect_close("out", d_out.values(start), expected.values(), tolerance);
  EXPECT_EQ(d_out.values(start), d_again.values(start)) << "not deterministic";
}

TEST(CudaGemm, cuda_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const auto& [m, n, k] :
       {std::tuple{1, 1, 1}, {3, 5, 7}, {17, 64, 33}, {128, 256, 64}, {1000, 384, 129}, {256, 1024, 768}})
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true})
        for (const float beta : {0.0f, 1.0f})
          for (const auto& [inputs, out] :
               {std::pair{Dtype::kF32, Dtype::kF32}, {Dtype::kBF16, Dtype::kBF16}, {Dtype::kBF16, Dtype::kF32}})
            for (const bool bias : {false, true}) {
              if (bias && (beta != 0 || out != inputs)) continue;
              // Tensor-core products of bf16 want rows of whole 16-byte vectors: the model's shapes have
              // them.
              if (inputs == Dtype::kBF16 && (m % 8 || n % 8 || k % 8)) continue;
              expect_cuda_matches_cpu({m, n, k, trans_a, trans_b, bias, beta, inputs, out});
            }
}

}  // namespace
}  // namespace tri::test
