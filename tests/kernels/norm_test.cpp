// norm_forward, norm_backward and residual_add against float64, over odd and large shapes.
#include "kernels/norm.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr double kEps = 1e-5;

enum class Residual { kNone, kAdd, kAddWithBias };

struct Case {
  Norm kind;
  bool bias;
  Residual residual;
  int64_t rows, width;

  bool layernorm() const { return kind == Norm::kLayerNorm; }
  float offset() const { return residual == Residual::kAdd ? 1.0f : 0.0f; }  // added to the weight
};

template <class Check>
void for_each_case(Check check) {
  for (const Norm kind : {Norm::kLayerNorm, Norm::kRmsNorm})
    for (const bool bias : {false, true})
      for (const Residual residual : {Residual::kNone, Residual::kAdd, Residual::kAddWithBias})
        for (const int64_t rows : {1, 3, 17, 256})
          for (const int64_t width : {1, 5, 64, 257, 1024}) {
            if (bias && kind == Norm::kRmsNorm) continue;                 // RMSNorm has no bias
            if (rows * width > 20000 && rows * width < 250000) continue;  // the largest represents them
            const Case c{kind, bias, residual, rows, width};
            SCOPED_TRACE(fmt::format("{} bias {} residual {} R {} C {}", enum_name(kind), bias,
                                     static_cast<int>(residual), rows, width));
            check(c);
          }
}

struct Inputs {
  Values inp, add, add_bias, weight, bias;

  explicit Inputs(const Case& c)
      : inp(random_values(c.rows * c.width, "inp")),
        add(c.residual == Residual::kNone ? Values{} : random_values(c.rows * c.width, "add")),
        add_bias(c.residual == Residual::kAddWithBias ? random_values(c.width, "add_bias") : Values{}),
        weight(random_values(c.width, "weight")),
        bias(c.bias ? random_values(c.width, "bias") : Values{}) {}
};

struct Outputs {
  Values out, mean, rstd, sum;
};

// Computes one row by the definition, from `sum` to `out`.
void reference_row(const Case& c, const Inputs& in, const double* sum, double* out, double& mean, double& rstd) {
  const double width = static_cast<double>(c.width);
  mean = 0;
  double variance = 0;
  if (c.layernorm())
    for (int64_t i = 0; i < c.width; ++i) mean += sum[i] / width;
  for (int64_t i = 0; i < c.width; ++i) variance += (sum[i] - mean) * (sum[i] - mean) / width;
  rstd = 1 / std::sqrt(variance + kEps);
  for (int64_t i = 0; i < c.width; ++i)
    out[i] = (sum[i] - mean) * rstd * (in.weight[i] + c.offset()) + (in.bias.empty() ? 0.0 : in.bias[i]);
}

Outputs reference(const Case& c, const Inputs& in) {
  const size_t count = in.inp.size(), rows = static_cast<size_t>(c.rows), width = static_cast<size_t>(c.width);
  Outputs o{Values(count), Values(rows), Values(rows), in.inp};
  for (size_t i = 0; i < count; ++i)
    o.sum[i] += (in.add.empty() ? 0.0 : in.add[i]) + (in.add_bias.empty() ? 0.0 : in.add_bias[i % width]);
  for (size_t r = 0; r < rows; ++r) reference_row(c, in, &o.sum[r * width], &o.out[r * width], o.mean[r], o.rstd[r]);
  return o;
}

struct ForwardRun {
  Buffer out, mean, rstd, sum;
};

ForwardRun run_forward(const Case& c, const Inputs& in, Dtype dtype) {
  const auto vector = [&](const Values& values) {
    return values.empty() ? Buffer() : Buffer(dtype, {c.width}, values);
  };
  const Buffer inp(dtype, {c.rows, c.width}, in.inp);
  const Buffer add = in.add.empty() ? Buffer() : Buffer(dtype, {c.rows, c.width}, in.add);
  const Buffer add_bias = vector(in.add_bias), weight = vector(in.weight), bias = vector(in.bias);
  ForwardRun run;
  run.out = Buffer(dtype, {c.rows, c.width});
  run.rstd = Buffer(Dtype::kF32, {c.rows});
  if (c.layernorm()) run.mean = Buffer(Dtype::kF32, {c.rows});
  if (!in.add.empty()) run.sum = Buffer(dtype, {c.rows, c.width});
  run_checked(cpu::norm_forward, {.kind = c.kind,
                                  .eps = static_cast<float>(kEps),
                                  .offset = c.offset(),
                                  .out = run.out,
                                  .mean = run.mean,
                                  .rstd = run.rstd,
                                  .sum = run.sum,
                                  .inp = inp,
                                  .add = add,
                                  .add_bias = add_bias,
                                  .weight = weight,
                                  .bias = bias});
  return run;
}

TEST(Norm, forward_matches_float64) {
  for_each_case([](const Case& c) {
    const Inputs in(c);
    const Outputs expected = reference(c, in);
    const ForwardRun run = run_forward(c, in, Dtype::kF32);
    expect_close("out", run.out.values(), expected.out);
    expect_close("rstd", run.rstd.values(), expected.rstd);
    if (c.layernorm()) expect_close("mean", run.mean.values(), expected.mean);
    if (!in.add.empty()) expect_close("sum", run.sum.values(), expected.sum);
  });
}

TEST(Norm, forward_in_bf16_differs_by_rounding_only) {
  for_each_case([](const Case& c) {
    const Inputs in(c);
    const ForwardRun half = run_forward(c, in, Dtype::kBF16);
    Inputs same = in;  // the statistics are those of the stored, rounded sum
    if (!in.add.empty()) same.inp = half.sum.values(), same.add.clear(), same.add_bias.clear();
    const Outputs expected = reference(c, same);
    expect_close("out", half.out.values(), expected.out, kBf16Tolerance);
    expect_close("rstd", half.rstd.values(), expected.rstd);
    if (!in.add.empty()) expect_close("sum", half.sum.values(), reference(c, in).sum, kBf16Tolerance);
  });
}

TEST(Norm, a_large_mean_costs_the_variance_no_digits) {
  const Case c{Norm::kLayerNorm, true, Residual::kNone, 3, 257};
  Inputs in(c);
  for (double& value : in.inp) value += 1024;  // E[x²] - E[x]² would lose 20 of 24 bits
  for (double& value : in.inp) value = static_cast<float>(value);
  expect_close("rstd", run_forward(c, in, Dtype::kF32).rstd.values(), reference(c, in).rstd, 1e-4);
}

struct BackwardRun {
  Buffer dinp, dweight, dbias;
};

// Runs the backward pass at `sum`, with `dresidual` (may be empty) on the skip path; gradients begin at `start`.
BackwardRun run_backward(const Case& c, const Inputs& in, const Values& dout, const Values& dresidual,
                         const Values& start, Dtype dtype) {
  const Outputs o = reference(c, in);
  const Buffer sum(dtype, {c.rows, c.width}, o.sum), dy(dtype, {c.rows, c.width}, dout);
  const Buffer weight(dtype, {c.width}, in.weight), rstd(Dtype::kF32, {c.rows}, o.rstd);
  const Buffer mean = c.layernorm() ? Buffer(Dtype::kF32, {c.rows}, o.mean) : Buffer();
  const Buffer skip = dresidual.empty() ? Buffer() : Buffer(dtype, {c.rows, c.width}, dresidual);
  BackwardRun run;
  run.dinp = Buffer(dtype, {c.rows, c.width});
  run.dweight = Buffer(Dtype::kF32, {c.width}, start);
  if (c.bias) run.dbias = Buffer(Dtype::kF32, {c.width}, start);
  run_checked(cpu::norm_backward, {.kind = c.kind,
                                   .offset = c.offset(),
                                   .dinp = run.dinp,
                                   .dresidual = skip,
                                   .dweight = run.dweight,
                                   .dbias = run.dbias,
                                   .dout = dy,
                                   .inp = sum,
                                   .weight = weight,
                                   .mean = mean,
                                   .rstd = rstd});
  return run;
}

TEST(Norm, backward_matches_finite_differences_of_float64) {
  for_each_case([](const Case& c) {
    if (c.residual == Residual::kAddWithBias) return;  // bias_backward computes the bias of the residual branch
    Inputs in(c);
    in.add.clear();  // the gradient is with respect to the sum
    const bool skips = c.residual == Residual::kAdd;
    const Values dout = random_values(c.rows * c.width, "dout");
    const Values dresidual = skips ? random_values(c.rows * c.width, "dresidual") : Values{};
    const Values start = random_values(c.width, "start");
    const BackwardRun run = run_backward(c, in, dout, dresidual, start, Dtype::kF32);
    const auto loss = [&] { return dot(dout, reference(c, in).out) + (skips ? dot(dresidual, in.inp) : 0.0); };
    // With one column the norm's own gradient nearly vanishes: its rounding, times rstd, is added to the skip path.
    if (c.width > 1 || skips)
      expect_gradient("inp", run.dinp.values(), in.inp, loss, c.width > 1 ? kFloatTolerance : 1e-3);
    expect_gradient("weight", minus(run.dweight.values(), start), in.weight, loss);
    if (c.bias) expect_gradient("bias", minus(run.dbias.values(), start), in.bias, loss);
  });
}

TEST(Norm, backward_in_bf16_differs_by_rounding_only) {
  for_each_case([](const Case& c) {
    if (c.residual == Residual::kAddWithBias) return;
    Inputs in(c);
    in.add.clear();
    const Values dout = random_values(c.rows * c.width, "dout"), start = random_values(c.width, "start");
    const Values dresidual = random_values(c.rows * c.width, "dresidual");
    const BackwardRun full = run_backward(c, in, dout, dresidual, start, Dtype::kF32);
    const BackwardRun half = run_backward(c, in, dout, dresidual, start, Dtype::kBF16);
    expect_close("dinp", half.dinp.values(), full.dinp.values(), kBf16Tolerance);
    // The operands hold equal numbers, and the parameter gradients are fp32 in both.
    EXPECT_TRUE(half.dweight.same_bits(full.dweight));
    EXPECT_TRUE(half.dbias.same_bits(full.dbias));
  });
}

TEST(Norm, dresidual_may_be_dinp) {
  for_each_case([](const Case& c) {
    if (c.residual != Residual::kNone) return;
    const Inputs in(c);
    const Values dout = random_values(c.rows * c.width, "dout"), start = random_values(c.width, "start");
    const Values dresidual = random_values(c.rows * c.width, "dresidual");
    const BackwardRun apart = run_backward(c, in, dout, dresidual, start, Dtype::kF32);
    const Outputs o = reference(c, in);
    const Buffer inp(Dtype::kF32, {c.rows, c.width}, in.inp), dy(Dtype::kF32, {c.rows, c.width}, dout);
    const Buffer weight(Dtype::kF32, {c.width}, in.weight), rstd(Dtype::kF32, {c.rows}, o.rstd);
    const Buffer mean = c.layernorm() ? Buffer(Dtype::kF32, {c.rows}, o.mean) : Buffer();
    const Buffer both(Dtype::kF32, {c.rows, c.width}, dresidual), dweight(Dtype::kF32, {c.width}, start);
    cpu::norm_backward({.kind = c.kind,
                        .dinp = both,
                        .dresidual = both,
                        .dweight = dweight,
                        .dout = dy,
                        .inp = inp,
                        .weight = weight,
                        .mean = mean,
                        .rstd = rstd});
    EXPECT_TRUE(both.same_bits(apart.dinp));
  });
}

TEST(Norm, two_runs_are_bit_identical) {
  for_each_case([](const Case& c) {
    Inputs in(c);
    const Values dout = random_values(c.rows * c.width, "dout"), start = random_values(c.width, "start");
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const ForwardRun f1 = run_forward(c, in, dtype), f2 = run_forward(c, in, dtype);
      EXPECT_TRUE(f1.out.same_bits(f2.out) && f1.rstd.same_bits(f2.rstd) && f1.mean.same_bits(f2.mean));
      const BackwardRun b1 = run_backward(c, in, dout, {}, start, dtype),
                        b2 = run_backward(c, in, dout, {}, start, dtype);
      EXPECT_TRUE(b1.dinp.same_bits(b2.dinp) && b1.dweight.same_bits(b2.dweight) && b1.dbias.same_bits(b2.dbias));
    }
  });
}

TEST(ResidualAdd, matches_float64_also_in_place) {
  for_each_case([](const Case& c) {
    if (c.residual == Residual::kNone || c.bias || !c.layernorm()) return;
    const Inputs in(c);
    const Values expected = reference(c, in).sum;
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const double tolerance = dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance;
      const Buffer inp(dtype, {c.rows, c.width}, in.inp), add(dtype, {c.rows, c.width}, in.add);
      const Buffer bias = in.add_bias.empty() ? Buffer() : Buffer(dtype, {c.width}, in.add_bias);
      const Buffer out(dtype, {c.rows, c.width});
      const Buffer over_inp(dtype, {c.rows, c.width}, in.inp), over_add(dtype, {c.rows, c.width}, in.add);
      check(ResidualAdd{.out = out, .inp = inp, .add = add, .add_bias = bias});
      cpu::residual_add({.out = out, .inp = inp, .add = add, .add_bias = bias});
      cpu::residual_add({.out = over_inp, .inp = over_inp, .add = add, .add_bias = bias});
      cpu::residual_add({.out = over_add, .inp = inp, .add = over_add, .add_bias = bias});
      expect_close("out", out.values(), expected, tolerance);
      EXPECT_TRUE(out.same_bits(over_inp) && out.same_bits(over_add));
    }
  });
}

// Returns element i of the sum of the parts, in fp32 in their order, rounded to storage.
Buffer summed(Dtype dtype, int64_t parts, int64_t rows, int64_t width, const Buffer& operand) {
  const Values values = operand.values();
  Values sums;
  const auto count = static_cast<size_t>(rows * width);
  for (size_t i = 0; i < count; ++i) {
    float sum = static_cast<float>(values[i]);
    for (int64_t p = 1; p < parts; ++p) sum += static_cast<float>(values[static_cast<size_t>(p) * count + i]);
    sums.push_back(sum);
  }
  return Buffer(dtype, {rows, width}, sums);
}

TEST(Norm, an_operand_in_parts_gives_the_bits_of_its_rounded_sum) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const int64_t parts : {1, 2, 3, 8})
      for (const int64_t width : {1, 7, 256}) {
        SCOPED_TRACE(fmt::format("{} P {} C {}", enum_name(dtype), parts, width));
        const int64_t rows = 5;
        const auto matrix = [&](const char* name) {
          return Buffer(dtype, {rows, width}, random_values(rows * width, name));
        };
        const Buffer in_parts(dtype, {parts, rows, width}, random_values(parts * rows * width, "parts"));
        const Buffer full = summed(dtype, parts, rows, width, in_parts);
        const Buffer inp = matrix("inp"), weight(dtype, {width}, random_values(width, "weight"));
        const auto forward = [&](Tensor add) {
          ForwardRun run{Buffer(dtype, {rows, width}), Buffer(), Buffer(Dtype::kF32, {rows}),
                         Buffer(dtype, {rows, width})};
          run_checked(cpu::norm_forward, {.kind = Norm::kRmsNorm,
                                          .out = run.out,
                                          .rstd = run.rstd,
                                          .sum = run.sum,
                                          .inp = inp,
                                          .add = add,
                                          .weight = weight});
          return run;
        };
        const ForwardRun f = forward(in_parts), f_full = forward(full);
        EXPECT_TRUE(f.out.same_bits(f_full.out) && f.sum.same_bits(f_full.sum) && f.rstd.same_bits(f_full.rstd));
        const auto backward = [&](Tensor dout) {
          BackwardRun run{Buffer(dtype, {rows, width}),
                          Buffer(Dtype::kF32, {width}, Values(static_cast<size_t>(width))), Buffer()};
          run_checked(cpu::norm_backward, {.kind = Norm::kRmsNorm,
                                           .dinp = run.dinp,
                                           .dweight = run.dweight,
                                           .dout = dout,
                                           .inp = inp,
                                           .weight = weight,
                                           .rstd = f.rstd});
          return run;
        };
        const BackwardRun b = backward(in_parts), b_full = backward(full);
        EXPECT_TRUE(b.dinp.same_bits(b_full.dinp) && b.dweight.same_bits(b_full.dweight));
        const auto residual = [&](Tensor add) {
          Buffer out(dtype, {rows, width});
          run_checked(cpu::residual_add, {.out = out, .inp = inp, .add = add});
          return out;
        };
        EXPECT_TRUE(residual(in_parts).same_bits(residual(full)));
      }
}

TEST(Norm, check_refuses_what_does_not_fit) {
  const Buffer x(Dtype::kF32, {3, 4}), y(Dtype::kF32, {3, 4}), s(Dtype::kF32, {3, 4}), half(Dtype::kBF16, {3, 4});
  const Buffer w(Dtype::kF32, {4}), row(Dtype::kF32, {3});
  const NormForward good{.out = y, .mean = row, .rstd = row, .sum = s, .inp = x, .add = x, .weight = w, .bias = w};
  EXPECT_NO_THROW(check(good));
  const auto refuses = [&](auto change) {
    NormForward args = good;
    change(args);
    EXPECT_THROW(check(args), Fatal);
  };
  refuses([&](NormForward& n) { n.out = half; });
  refuses([&](NormForward& n) { n.weight = row; });
  refuses([&](NormForward& n) { n.weight = {}; });
  refuses([&](NormForward& n) { n.mean = {}; });
  refuses([&](NormForward& n) { n.rstd = w; });
  refuses([&](NormForward& n) { n.sum = {}; });  // add without sum
  const Buffer wrong_parts(Dtype::kF32, {2, 4, 4});
  refuses([&](NormForward& n) { n.add = wrong_parts; });
  refuses([&](NormForward& n) { n.add = {}; });                            // sum without add
  refuses([&](NormForward& n) { n.add = n.sum = {}, n.add_bias = w; });    // add_bias without add
  refuses([&](NormForward& n) { n.kind = Norm::kRmsNorm; });               // with a mean and a bias
  refuses([&](NormForward& n) { n.kind = Norm::kRmsNorm, n.mean = {}; });  // with a bias
  EXPECT_THROW(check(ResidualAdd{.out = y, .inp = x}), Fatal);
  const auto wide = [&](int64_t width) {  // only shapes are used
    const Tensor rows(Tensor(x).data, Dtype::kF32, {1, width}), vector(rows.data, Dtype::kF32, {width});
    const Tensor statistic(rows.data, Dtype::kF32, {1});
    return NormForward{.kind = Norm::kRmsNorm, .out = rows, .rstd = statistic, .inp = rows, .weight = vector};
  };
  EXPECT_NO_THROW(check(wide(int64_t{1} << 29)));
  EXPECT_THROW(check(wide(int64_t{1} << 30)), Fatal);
  EXPECT_THROW(
      check(NormBackward{.dinp = y, .dweight = w, .dout = half, .inp = x, .weight = w, .mean = row, .rstd = row}),
      Fatal);
}

}  // namespace
}  // namespace tri::test
