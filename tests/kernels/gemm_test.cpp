// gemm, symmetric_product and bias_backward against float64, over odd and large shapes and all operand layouts.
#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},     {1, 5, 3},      {3, 1, 17},    {17, 64, 5},
                             {64, 65, 257}, {257, 130, 64}, {33, 513, 128}};

struct Case {
  Shape shape;
  Trans trans_a, trans_b;
  float beta;
  bool bias;

  std::string text() const {
    return fmt::format("m {} n {} k {} ta {} tb {} beta {} bias {}", shape.m, shape.n, shape.k, trans_a == Trans::kYes,
                       trans_b == Trans::kYes, beta, bias);
  }
};

template <class Check>
void for_each_case(Check check) {
  for (const Shape& shape : kShapes)
    for (const Trans ta : {Trans::kNo, Trans::kYes})
      for (const Trans tb : {Trans::kNo, Trans::kYes})
        for (const float beta : {0.0f, 1.0f, 0.5f})
          for (const bool bias : {false, true}) {
            const Case c{shape, ta, tb, beta, bias};
            SCOPED_TRACE(c.text());
            check(c);
          }
}

struct Inputs {
  Values a, b, bias, out;  // `out` matters only if beta is not 0

  explicit Inputs(const Shape& s)
      : a(random_values(s.m * s.k, "a")),
        b(random_values(s.k * s.n, "b")),
        bias(random_values(s.n, "bias")),
        out(random_values(s.m * s.n, "out")) {}
};

Values reference(const Case& c, const Inputs& in) {
  const auto [m, n, k] = c.shape;
  Values out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) out[i * n + j] = c.beta * in.out[i * n + j] + (c.bias ? in.bias[j] : 0.0);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t x = 0; x < k; ++x) {
      const double a = in.a[c.trans_a == Trans::kYes ? x * m + i : i * k + x];
      if (c.trans_b == Trans::kYes)
        for (int64_t j = 0; j < n; ++j) out[i * n + j] += a * in.b[j * k + x];
      else
        for (int64_t j = 0; j < n; ++j) out[i * n + j] += a * in.b[x * n + j];
    }
  return out;
}

Buffer run(const Case& c, const Inputs& in, Dtype dtype, Dtype out_dtype) {
  const auto [m, n, k] = c.shape;
  const bool ta = c.trans_a == Trans::kYes, tb = c.trans_b == Trans::kYes;
  const Buffer a(dtype, {ta ? k : m, ta ? m : k}, in.a), b(dtype, {tb ? n : k, tb ? k : n}, in.b);
  const Buffer bias = c.bias ? Buffer(dtype, {n}, in.bias) : Buffer();
  // With beta 0 the output starts as NaN and must not be read.
  Buffer out = c.beta == 0 ? Buffer(out_dtype, {m, n}) : Buffer(out_dtype, {m, n}, in.out);
  run_checked(cpu::gemm,
              {.out = out, .a = a, .b = b, .trans_a = c.trans_a, .trans_b = c.trans_b, .beta = c.beta, .bias = bias});
  return out;
}

TEST(Gemm, matches_float64_in_every_layout) {
  for_each_case([](const Case& c) {
    const Inputs in(c.shape);
    expect_close("out", run(c, in, Dtype::kF32, Dtype::kF32).values(), reference(c, in));
  });
}

TEST(Gemm, multiplies_bf16_in_fp32_and_rounds_the_result_once) {
  for_each_case([](const Case& c) {
    const Inputs in(c.shape);
    const Values expected = run(c, in, Dtype::kF32, Dtype::kF32).values();
    // bf16 operands with equal numbers give exactly the same fp32 output.
    EXPECT_EQ(run(c, in, Dtype::kBF16, Dtype::kF32).values(), expected);
    Values rounded = expected;
    for (double& value : rounded) value = static_cast<float>(bf16(static_cast<float>(value)));
    EXPECT_EQ(run(c, in, Dtype::kBF16, Dtype::kBF16).values(), rounded);
  });
}

TEST(Gemm, the_layers_gradients_are_gemms_too) {
  // loss = sum(dout · out),  out = inp · weight^T + bias
  for (const auto& [rows, n, k] : kShapes) {
    SCOPED_TRACE(fmt::format("R {} N {} K {}", rows, n, k));
    const Case forward{{rows, n, k}, Trans::kNo, Trans::kYes, 0.0f, true};
    Inputs in(forward.shape);
    const Values dout = random_values(rows * n, "dout"), start = random_values(n * k, "dweight");
    const Buffer inp(Dtype::kF32, {rows, k}, in.a), weight(Dtype::kF32, {n, k}, in.b), dy(Dtype::kF32, {rows, n}, dout);
    Buffer dinp(Dtype::kF32, {rows, k}), dweight(Dtype::kF32, {n, k}, start), dbias(Dtype::kF32, {n}, in.bias);
    cpu::gemm({.out = dinp, .a = dy, .b = weight});
    cpu::gemm({.out = dweight, .a = dy, .b = inp, .trans_a = Trans::kYes, .beta = 1.0f});
    cpu::bias_backward({.dbias = dbias, .dout = dy});

    const auto loss = [&] { return dot(dout, reference(forward, in)); };
    const Values start_bias = in.bias;
    expect_gradient("inp", dinp.values(), in.a, loss);
    expect_gradient("weight", minus(dweight.values(), start), in.b, loss);
    expect_gradient("bias", minus(dbias.values(), start_bias), in.bias, loss);
  }
}

TEST(Gemm, scales_the_product_and_adds_another_matrix) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const auto& [m, n, k] : kShapes) {
      const Case product{{m, n, k}, Trans::kNo, Trans::kNo, 0.0f, false};
      const Inputs in(product.shape);
      const Buffer a(dtype, {m, k}, in.a), b(dtype, {k, n}, in.b), addend(dtype, {m, n}, in.out);
      Buffer out(dtype, {m, n});  // poisoned, and not read
      run_checked(cpu::gemm, {.out = out, .a = a, .b = b, .alpha = 2.0315f, .beta = -4.775f, .addend = addend});
      Values expected = reference(product, in);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2.0315 * expected[i] - 4.775 * in.out[i];
      expect_close("out", out.values(), expected, dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
      EXPECT_EQ(addend.values(), in.out);
    }
}

TEST(BiasBackward, adds_the_column_sums) {
  for (const int64_t rows : {1, 3, 17, 256})
    for (const int64_t n : {1, 5, 64, 257, 1024}) {
      SCOPED_TRACE(fmt::format("R {} N {}", rows, n));
      const Values dout = random_values(rows * n, "dout"), start = random_values(n, "dbias");
      Values expected = start;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < n; ++j) expected[j] += dout[r * n + j];
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        const Buffer dy(dtype, {rows, n}, dout);
        const Buffer first(Dtype::kF32, {n}, start), second(Dtype::kF32, {n}, start);
        check(BiasBackward{.dbias = first, .dout = dy});
        cpu::bias_backward({.dbias = first, .dout = dy});
        cpu::bias_backward({.dbias = second, .dout = dy});
        expect_close("dbias", first.values(), expected);
        EXPECT_TRUE(first.same_bits(second));
      }
    }
}

TEST(Gemm, two_runs_are_bit_identical) {
  for_each_case([](const Case& c) {
    const Inputs in(c.shape);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      EXPECT_TRUE(run(c, in, dtype, dtype).same_bits(run(c, in, dtype, dtype)));
  });
}

TEST(Gemm, check_refuses_what_does_not_fit) {
  const Buffer a(Dtype::kF32, {3, 4}), b(Dtype::kF32, {4, 5}), out(Dtype::kF32, {3, 5}), bias(Dtype::kF32, {5});
  const Buffer half(Dtype::kBF16, {4, 5}), wide(Dtype::kF32, {3, 6}), square(Dtype::kF32, {4, 4});
  EXPECT_NO_THROW(check(Gemm{.out = out, .a = a, .b = b, .bias = bias}));
  EXPECT_THROW(check(Gemm{.out = out, .a = a, .b = b, .trans_b = Trans::kYes}), Fatal);
  EXPECT_THROW(check(Gemm{.out = out, .a = a, .b = half}), Fatal);
  EXPECT_THROW(check(Gemm{.out = wide, .a = a, .b = b}), Fatal);
  EXPECT_THROW(check(Gemm{.out = out, .a = a, .b = b, .bias = wide}), Fatal);
  EXPECT_THROW(check(Gemm{.out = {}, .a = a, .b = b}), Fatal);
  EXPECT_THROW(check(Gemm{.out = out, .a = a, .b = b, .beta = 1.0f, .addend = out}), Fatal);
  EXPECT_THROW(check(Gemm{.out = out, .a = a, .b = b, .alpha = 2.0f, .bias = bias}), Fatal);
  EXPECT_THROW(check(Gemm{.out = square, .a = square, .b = square}), Fatal);  // in place
  EXPECT_THROW(check(BiasBackward{.dbias = bias, .dout = wide}), Fatal);
}

// Sides within a block of rows, and of several; the result is exactly symmetric.
TEST(SymmetricProduct, equals_the_product_with_its_transpose) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const auto& [side, k] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {24, 40}, {128, 33}, {129, 64}, {300, 130}})
      for (const Trans trans : {Trans::kNo, Trans::kYes})
        for (const bool adds : {false, true}) {
          SCOPED_TRACE(fmt::format("{} x {}, transposed {}, adds {}", side, k, trans == Trans::kYes, adds));
          const bool transposed = trans == Trans::kYes;
          const Buffer a = transposed ? Buffer(dtype, {k, side}, random_values(side * k, "a"))
                                      : Buffer(dtype, {side, k}, random_values(side * k, "a"));
          Values symmetric = random_values(side * side, "addend");
          for (int64_t i = 0; i < side; ++i)
            for (int64_t j = 0; j < i; ++j) symmetric[j * side + i] = symmetric[i * side + j];
          const Buffer addend = adds ? Buffer(dtype, {side, side}, symmetric) : Buffer();
          Buffer out(dtype, {side, side});
          run_checked(cpu::symmetric_product, {.out = out,
                                               .a = a,
                                               .trans_a = trans,
                                               .alpha = 0.5f,
                                               .beta = adds ? -1.25f : 0.0f,
                                               .addend = adds ? Tensor(addend) : Tensor()});
          const Values x = a.values(), added = adds ? addend.values() : Values(symmetric.size());
          Values expected(symmetric.size());
          for (int64_t i = 0; i < side; ++i)
            for (int64_t j = 0; j < side; ++j) {
              double sum = 0;
              for (int64_t c = 0; c < k; ++c)
                sum += transposed ? x[c * side + i] * x[c * side + j] : x[i * k + c] * x[j * k + c];
              expected[i * side + j] = 0.5 * sum - 1.25 * added[i * side + j];
            }
          const Values actual = out.values();
          expect_close("out", actual, expected, dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
          for (int64_t i = 0; i < side; ++i)
            for (int64_t j = 0; j < i; ++j) ASSERT_EQ(actual[j * side + i], actual[i * side + j]);
        }
}

// The addend may be the operand: Muon adds A to A · A.
TEST(SymmetricProduct, may_add_its_operand) {
  const int64_t side = 160;
  Values symmetric = random_values(side * side, "a");
  for (int64_t i = 0; i < side; ++i)
    for (int64_t j = 0; j < i; ++j) symmetric[j * side + i] = symmetric[i * side + j];
  const Buffer a(Dtype::kF32, {side, side}, symmetric);
  Buffer out(Dtype::kF32, {side, side}), whole(Dtype::kF32, {side, side});
  run_checked(cpu::symmetric_product, {.out = out, .a = a, .alpha = 2.0315f, .beta = -4.775f, .addend = a});
  cpu::gemm({.out = whole, .a = a, .b = a, .alpha = 2.0315f, .beta = -4.775f, .addend = a});
  expect_close("out", out.values(), whole.values(), kFloatTolerance);
}

TEST(SymmetricProduct, refuses_an_output_that_is_an_operand) {
  const Buffer a(Dtype::kF32, {8, 8}), out(Dtype::kF32, {8, 8}), odd(Dtype::kF32, {8, 9});
  EXPECT_NO_THROW(check(SymmetricProduct{.out = out, .a = a}));
  EXPECT_THROW(check(SymmetricProduct{.out = a, .a = a}), Fatal);
  EXPECT_THROW(check(SymmetricProduct{.out = out, .a = a, .beta = 1.0f, .addend = out}), Fatal);
  EXPECT_THROW(check(SymmetricProduct{.out = out, .a = a, .beta = 1.0f}), Fatal);
  EXPECT_THROW(check(SymmetricProduct{.out = out, .a = odd, .trans_a = Trans::kYes}), Fatal);
}

}  // namespace
}  // namespace tri::test
