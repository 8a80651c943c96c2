// activation_forward and activation_backward against float64, over odd and large shapes; and through a CPU stream.
#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <numbers>

#include "io/base/error.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

struct Case {
  Activation kind;
  int64_t rows, width;
  int64_t inner() const { return is_gated(kind) ? 2 * width : width; }
};

template <class Check>
void for_each_case(Check check) {
  for (const Activation kind : kActivationKernels)
    for (const int64_t rows : {1, 3, 17, 256})
      for (const int64_t width : {1, 5, 64, 257, 1024}) {
        if (rows * width > 20000 && rows * width < 250000) continue;  // the largest represents them
        SCOPED_TRACE(fmt::format("{} R {} F {}", enum_name(kind), rows, width));
        check(Case{kind, rows, width});
      }
}

// Inputs are wide enough to reach both tails.
Values inputs(const Case& c) { return random_values(c.rows * c.inner(), "inp", 3.0); }

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_erf(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double silu(double x) { return x / (1 + std::exp(-x)); }

Values reference(const Case& c, const Values& inp) {
  Values out(static_cast<size_t>(c.rows * c.width));
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t i = 0; i < c.width; ++i) {
      const double* row = &inp[r * c.inner()];
      double& value = out[r * c.width + i];
      value = c.kind == Activation::kSwiglu    ? silu(row[i])
              : c.kind == Activation::kGeluErf ? gelu_erf(row[i])
                                               : gelu(row[i]);
      if (is_gated(c.kind)) value *= row[c.width + i];
    }
  return out;
}

Buffer run_forward(const Case& c, const Values& values, Dtype dtype) {
  const Buffer inp(dtype, {c.rows, c.inner()}, values), out(dtype, {c.rows, c.width});
  run_checked(cpu::activation_forward, {.kind = c.kind, .out = out, .inp = inp});
  return out;
}

Buffer run_backward(const Case& c, const Values& values, const Values& dout, Dtype dtype) {
  const Buffer inp(dtype, {c.rows, c.inner()}, values), dy(dtype, {c.rows, c.width}, dout);
  const Buffer dinp(dtype, {c.rows, c.inner()});
  run_checked(cpu::activation_backward, {.kind = c.kind, .dinp = dinp, .dout = dy, .inp = inp});
  return dinp;
}

TEST(Activation, forward_matches_float64) {
  for_each_case([](const Case& c) {
    const Values inp = inputs(c);
    expect_close("out", run_forward(c, inp, Dtype::kF32).values(), reference(c, inp), 1e-6);
    expect_close("bf16 out", run_forward(c, inp, Dtype::kBF16).values(), reference(c, inp), kBf16Tolerance);
  });
}

TEST(Activation, backward_matches_finite_differences_of_float64) {
  for_each_case([](const Case& c) {
    Values inp = inputs(c);
    const Values dout = random_values(c.rows * c.width, "dout");
    const Values dinp = run_backward(c, inp, dout, Dtype::kF32).values();
    expect_gradient("inp", dinp, inp, [&] { return dot(dout, reference(c, inp)); });
    expect_close("bf16 dinp", run_backward(c, inp, dout, Dtype::kBF16).values(), dinp, kBf16Tolerance);
  });
}

// The comparison is relative, without an allowance for the size of other elements: 1 + tanh would cancel.
TEST(Activation, gelu_keeps_its_digits_in_the_negative_tail) {
  const Values inp{-0.5, -1, -2, -3, -4, -5};
  for (const Activation kind : {Activation::kGelu, Activation::kGeluErf}) {
    const Case c{kind, 1, static_cast<int64_t>(inp.size())};
    const Values out = run_forward(c, inp, Dtype::kF32).values();
    const Values expected = reference(c, inp);
    for (size_t i = 0; i < inp.size(); ++i)
      EXPECT_NEAR(out[i] / expected[i], 1, 1e-5) << enum_name(kind) << " of " << inp[i];
  }
}

TEST(Activation, saturates_without_nan_and_carries_nan_through) {
  const Values inp{-1e4, 1e4, std::nan("")}, ones{1, 1, 1};
  for (const Activation kind : kActivationKernels) {
    const std::string_view name = enum_name(kind);
    const Case c{kind, 1, 3};
    Values values = inp;
    if (is_gated(kind)) values.insert(values.end(), ones.begin(), ones.end());
    const Values out = run_forward(c, values, Dtype::kF32).values();
    const Values dinp = run_backward(c, values, ones, Dtype::kF32).values();
    EXPECT_EQ(out[0], 0) << name;
    EXPECT_EQ(out[1], 1e4) << name;
    EXPECT_TRUE(std::isnan(out[2])) << name;
    EXPECT_EQ(dinp[0], 0) << name;
    EXPECT_EQ(dinp[1], 1) << name;
    EXPECT_TRUE(std::isnan(dinp[2])) << name;
  }
}

TEST(Activation, dinp_may_be_dout_without_a_gate) {
  for_each_case([](const Case& c) {
    if (c.inner() != c.width) return;
    const Values inp = inputs(c), dout = random_values(c.rows * c.width, "dout");
    const Buffer both(Dtype::kF32, {c.rows, c.width}, dout), x(Dtype::kF32, {c.rows, c.width}, inp);
    cpu::activation_backward({.kind = c.kind, .dinp = both, .dout = both, .inp = x});
    EXPECT_TRUE(both.same_bits(run_backward(c, inp, dout, Dtype::kF32)));
  });
}

TEST(Activation, dinp_may_be_inp) {
  for_each_case([](const Case& c) {
    const Values inp = inputs(c), dout = random_values(c.rows * c.width, "dout");
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Buffer both(dtype, {c.rows, c.inner()}, inp), dy(dtype, {c.rows, c.width}, dout);
      cpu::activation_backward({.kind = c.kind, .dinp = both, .dout = dy, .inp = both});
      EXPECT_TRUE(both.same_bits(run_backward(c, inp, dout, dtype)));
    }
  });
}

TEST(Activation, two_runs_are_bit_identical) {
  for_each_case([](const Case& c) {
    const Values inp = inputs(c), dout = random_values(c.rows * c.width, "dout");
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      EXPECT_TRUE(run_forward(c, inp, dtype).same_bits(run_forward(c, inp, dtype)));
      EXPECT_TRUE(run_backward(c, inp, dout, dtype).same_bits(run_backward(c, inp, dout, dtype)));
    }
  });
}

TEST(Activation, runs_on_a_cpu_stream_in_the_order_enqueued) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("compute");
  const Case c{Activation::kGelu, 17, 257};
  const Values inp = inputs(c);
  const Buffer x(Dtype::kF32, {c.rows, c.width}, inp), y(Dtype::kF32, {c.rows, c.width});
  const Buffer copy(Dtype::kBF16, {c.rows, c.width});
  activation_forward({.kind = c.kind, .out = y, .inp = x}, *stream);
  cast({.out = copy, .inp = y}, *stream);
  stream->synchronize();
  EXPECT_TRUE(y.same_bits(run_forward(c, inp, Dtype::kF32)));
  expect_close("cast", copy.values(), reference(c, inp), kBf16Tolerance);
  EXPECT_THROW(activation_forward({.kind = Activation::kSwiglu, .out = y, .inp = x}, *stream), Fatal);
}

TEST(Activation, check_refuses_what_does_not_fit) {
  const Buffer x(Dtype::kF32, {3, 8}), half(Dtype::kF32, {3, 4}), other(Dtype::kBF16, {3, 8});
  EXPECT_NO_THROW(check(ActivationForward{.kind = Activation::kGelu, .out = x, .inp = x}));
  EXPECT_NO_THROW(check(ActivationForward{.kind = Activation::kSwiglu, .out = half, .inp = x}));
  EXPECT_THROW(check(ActivationForward{.kind = Activation::kSwiglu, .out = x, .inp = x}), Fatal);
  EXPECT_THROW(check(ActivationForward{.kind = Activation::kGelu, .out = other, .inp = x}), Fatal);
  EXPECT_THROW(check(ActivationForward{.kind = Activation::kGelu, .out = x}), Fatal);
  EXPECT_THROW(check(ActivationBackward{.kind = Activation::kGelu, .dinp = half, .dout = x, .inp = x}), Fatal);
}

}  // namespace
}  // namespace tri::test
