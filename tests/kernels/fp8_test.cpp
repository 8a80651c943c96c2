// FP8 against definitions in float64: the formats' numbers, rounding of every bf16 number and around every border,
// casts in both orientations, counts, scales, and each form of the GEMM.
#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/core/dims.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

// The counts of a step so far, beyond which 32 bits would wrap.
constexpr double kManyCounted = 0x1p32 - 1;

constexpr Dtype kFormats[] = {Dtype::kE4M3, Dtype::kE5M2};
constexpr Dtype kInputs[] = {Dtype::kF32, Dtype::kBF16};
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {1, 16}, {3, 5}, {31, 33}, {64, 64}, {129, 257}, {512, 48}};

// Returns a number by the format's definition, using only float64 arithmetic.
double number_of(int code, Dtype dtype) {
  const int mantissa_bits = dtype == Dtype::kE4M3 ? 3 : 2, bias = dtype == Dtype::kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7F) >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
  const double sign = code >= 0x80 ? -1 : 1;
  if (dtype == Dtype::kE4M3 && (code & 0x7F) == 0x7F) return NAN;
  if (dtype == Dtype::kE5M2 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  const double fraction = mantissa / std::pow(2.0, mantissa_bits);
  return exponent == 0 ? sign * fraction * std::pow(2.0, 1 - bias)
                       : sign * (1 + fraction) * std::pow(2.0, exponent - bias);
}

int last_finite(Dtype dtype) { return dtype == Dtype::kE4M3 ? 0x7E : 0x7B; }

// Returns the nearest finite number, the one with the even code if two are equally near; beyond the range the largest.
int nearest_code(double value, Dtype dtype) {
  if (std::isnan(value)) return 0x7F;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double size = std::fabs(value);
  int low = 0, high = last_finite(dtype);
  if (size >= number_of(high, dtype)) return sign | high;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (number_of(middle, dtype) <= size ? low : high) = middle;
  }
  const double below = size - number_of(low, dtype), above = number_of(high, dtype) - size;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

TEST(Fp8, codes_stand_for_the_numbers_of_the_formats) {
  for (const Dtype dtype : kFormats)
    for (int code = 0; code < 256; ++code) {
      const double expected = number_of(code, dtype);
      const float actual = fp8_table(dtype)[static_cast<size_t>(code)];
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(actual)) << enum_name(dtype) << " " << code;
      else
        EXPECT_EQ(actual, expected) << enum_name(dtype) << " " << code;
    }
  EXPECT_EQ(kE4M3Table[0x7E], 448.0f);
  EXPECT_EQ(kE5M2Table[0x7B], 57344.0f);
  EXPECT_EQ(kE4M3Table[1], std::ldexp(1.0f, -9));
  EXPECT_EQ(kE5M2Table[1], std::ldexp(1.0f, -16));
}

TEST(Fp8, every_bf16_number_rounds_to_the_nearest_even) {
  for (const Dtype dtype : kFormats)
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto value = std::bit_cast<float>(bits << 16);
      const int code = fp8_encode(value, fp8_format(dtype));
      ASSERT_EQ(code, nearest_code(value, dtype)) << enum_name(dtype) << " of " << value;
    }
}

// The result changes in the middle between two numbers; tests it and the floats on either side.
TEST(Fp8, floats_next_to_every_border_round_to_the_nearest_even) {
  for (const Dtype dtype : kFormats)
    for (int code = 0; code <= last_finite(dtype); ++code) {
      const double next = code == last_finite(dtype) ? 2 * number_of(code, dtype) - number_of(code - 1, dtype)
                                                     : number_of(code + 1, dtype);
      const auto middle = static_cast<float>((number_of(code, dtype) + next) / 2);
      const auto exact = static_cast<float>(number_of(code, dtype));
      for (const float at : {middle, exact})
        for (const float value : {at, std::nextafter(at, 0.0f), std::nextafter(at, INFINITY)})
          for (const float sign : {1.0f, -1.0f})
            ASSERT_EQ(fp8_encode(sign * value, fp8_format(dtype)), nearest_code(sign * value, dtype))
                << enum_name(dtype) << " of " << value;
    }
}

TEST(Fp8, random_floats_of_all_sizes_round_to_the_nearest_even) {
  const uint64_t key = derive_key(1, "floats");
  for (const Dtype dtype : kFormats)
    for (uint64_t i = 0; i < 200000; ++i) {
      const auto value = std::bit_cast<float>(static_cast<uint32_t>(random_u64(key, i)));
      ASSERT_EQ(fp8_encode(value, fp8_format(dtype)), nearest_code(value, dtype))
          << enum_name(dtype) << " of " << value;
    }
}

TEST(Fp8, what_is_not_finite_and_what_is_too_large) {
  for (const Dtype dtype : kFormats) {
    const int last = last_finite(dtype);
    EXPECT_EQ(fp8_encode(INFINITY, fp8_format(dtype)), last);
    EXPECT_EQ(fp8_encode(-INFINITY, fp8_format(dtype)), 0x80 | last);
    EXPECT_EQ(fp8_encode(3e38f, fp8_format(dtype)), last);
    EXPECT_EQ(fp8_encode(NAN, fp8_format(dtype)), 0x7F);
    EXPECT_EQ(fp8_encode(-NAN, fp8_format(dtype)), 0x7F);
  }
}

// Returns numbers with outliers, zeros of both signs, and numbers that are too small.
Values with_outliers(int64_t count, std::string_view name) {
  Values values = random_values(count, name);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 7 == 3) values[i] *= 1024;
    if (i % 11 == 5) values[i] = i % 2 == 0 ? 0.0 : -0.0;
    if (i % 13 == 6) values[i] *= std::ldexp(1.0, -20);
  }
  return values;
}

// Tensors of a flat slice, each with its own scale: outliers, non-finite numbers, and padding, which is not written.
TEST(Fp8Cast, slices_by_tensor) {
  const std::vector<double> owners = {1, -1, 0, 0, 0, 2, 2, -1, 3};
  const Values slots = {4, 0, 3, 1}, scales = {0.125, 0x1p10, NAN, 1, 0};  // of each slot
  const int64_t n = static_cast<int64_t>(owners.size()) * kBlock, num_slots = static_cast<int64_t>(scales.size());
  Values values = with_outliers(n, "inp");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 211 == 7) values[i] = i % 2 == 0 ? INFINITY : -INFINITY;
    if (i % 223 == 8) values[i] = NAN;
    if (owners[i / kBlock] < 0) values[i] = NAN;
    if (owners[i / kBlock] == 3) values[i] = 3 + 0.0001 * static_cast<double>(i % kBlock);  // not numbers of bf16
  }
  const Buffer inp(Dtype::kF32, {n}, values), owner(Dtype::kI32, {n / kBlock}, owners);
  const Buffer slot(Dtype::kI32, {4}, slots), scale(Dtype::kF32, {num_slots}, scales);
  for (const int64_t blocks : {n / kBlock, int64_t{1}}) {  // blocks per call
    const Buffer out(Dtype::kE4M3, {n}, Values(static_cast<size_t>(n), 1.5));
    const Buffer amax(Dtype::kF32, {num_slots}, Values(static_cast<size_t>(num_slots), 0.25));
    const Buffer counts(Dtype::kI64, {num_slots, kNumFp8Counts},
                        Values(static_cast<size_t>(num_slots * kNumFp8Counts), kManyCounted));
    for (int64_t first = 0; first < n; first += blocks * kBlock) {
      const int64_t count = blocks * kBlock;
      run_checked(cpu::fp8_cast_slice, {.quantized = {.out = Tensor(out).flat(first, count),
                                                      .slot = slot,
                                                      .scale = scale,
                                                      .amax = amax,
                                                      .counts = counts},
                                        .inp = Tensor(inp).flat(first, count),
                                        .block_tensor = Tensor(owner).flat(first / kBlock, blocks)});
    }
    Values most(scales.size(), 0.25), found(scales.size() * kNumFp8Counts, kManyCounted);
    const Values inputs = inp.values();  // as floats
    for (int64_t i = 0; i < n; ++i) {
      const double value = inputs[static_cast<size_t>(i)];
      const auto tensor = static_cast<int>(owners[static_cast<size_t>(i / kBlock)]);
      const auto at = static_cast<size_t>(tensor < 0 ? 0 : slots[static_cast<size_t>(tensor)]);
      const double scaled = std::isfinite(value) ? value * scales[at] : NAN;
      const int code = tensor < 0 ? nearest_code(1.5, Dtype::kE4M3) : nearest_code(scaled, Dtype::kE4M3);
      ASSERT_EQ(fp8_bytes(Tensor(out))[i], code) << i << ": " << value << " · " << scales[at];
      if (tensor < 0) continue;
      if (!std::isnan(most[at])) most[at] = std::isnan(value) ? NAN : std::max(most[at], std::fabs(value));
      double* const counted = found.data() + at * kNumFp8Counts;
      counted[0] += 1;
      counted[1] += std::isfinite(value) && std::fabs(scaled) > 448;
      counted[2] += value != 0 && (code & 0x7F) == 0;
    }
    EXPECT_EQ(counts.values(), found);
    for (size_t i = 0; i < most.size(); ++i)
      EXPECT_TRUE(amax.values()[i] == most[i] || (std::isnan(amax.values()[i]) && std::isnan(most[i]))) << i;
  }
}

TEST(Fp8Cast, both_orientations_amax_and_counts) {
  for (const auto& [rows, columns] : kShapes)
    for (const Dtype from : kInputs)
      for (const Dtype to : kFormats)
        for (const double scale : {1.0, 0.125, 4096.0}) {
          const Values values = with_outliers(rows * columns, "inp");
          const Buffer inp(from, {rows, columns}, values), factor(Dtype::kF32, {1}, {scale});
          const Buffer out(to, {rows, columns}), out_t(to, {columns, rows}), alone(to, {columns, rows});
          const Buffer amax(Dtype::kF32, {1}, {0.25}),
              counts(Dtype::kI64, {kNumFp8Counts}, Values(kNumFp8Counts, kManyCounted));
          run_checked(cpu::fp8_cast,
                      {.out = out, .out_t = out_t, .inp = inp, .scale = factor, .amax = amax, .counts = counts});
          cpu::fp8_cast({.out_t = alone, .inp = inp, .scale = factor});
          double most = 0.25, saturated = 0, underflowed = 0;
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < columns; ++c) {
              const double value = values[static_cast<size_t>(r * columns + c)];
              const int code = nearest_code(value * scale, to);
              ASSERT_EQ(fp8_bytes(Tensor(out))[r * columns + c], code) << value << " · " << scale;
              ASSERT_EQ(fp8_bytes(Tensor(out_t))[c * rows + r], code);
              most = std::max(most, std::fabs(value));
              saturated += std::fabs(value * scale) > number_of(last_finite(to), to);
              underflowed += value != 0 && (code & 0x7F) == 0;
            }
          EXPECT_TRUE(alone.same_bits(out_t));
          EXPECT_EQ(amax.values()[0], most);
          EXPECT_EQ(counts.values(), (Values{kManyCounted + static_cast<double>(rows * columns),
                                             kManyCounted + saturated, kManyCounted + underflowed}));
          const Buffer of_amax(Dtype::kF32, {1}, {0.0});
          cpu::fp8_amax({.amax = of_amax, .inp = inp});
          EXPECT_EQ(of_amax.values()[0], most == 0.25 ? of_amax.values()[0] : most);
        }
}

TEST(Fp8Cast, sums_the_rows_for_a_bias) {
  const Buffer inp(Dtype::kBF16, {3, 2}, {1, 2, 3, 4, 5, 6}), scale(Dtype::kF32, {1}, {1.0});
  const Buffer out(Dtype::kE4M3, {3, 2}), dbias(Dtype::kF32, {2}, {10, 20});
  cpu::fp8_cast({.out = out, .inp = inp, .scale = scale, .dbias = dbias});
  EXPECT_EQ(dbias.values(), (Values{19, 32}));
}

TEST(Fp8Activation, casts_what_the_activation_makes) {
  const int64_t rows = 5, width = 48;
  const Buffer scale(Dtype::kF32, {1}, {16.0});
  for (const Dtype type : {Dtype::kF32, Dtype::kBF16})
    for (const Activation kind : kActivationKernels) {
      const int64_t wide = is_gated(kind) ? 2 * width : width;
      const Buffer inp(type, {rows, wide}, random_values(rows * wide, "pre"));
      const Buffer dout(type, {rows, width}, random_values(rows * width, "dout"));
      const Buffer made(type, {rows, width}), dmade(type, {rows, wide});
      cpu::activation_forward({.kind = kind, .out = made, .inp = inp});
      cpu::activation_backward({.kind = kind, .dinp = dmade, .dout = dout, .inp = inp});
      const Buffer out(Dtype::kE4M3, {rows, width}), expected(Dtype::kE4M3, {rows, width});
      cpu::fp8_cast({.out = expected, .inp = made, .scale = scale});
      cpu::fp8_activation_forward({.kind = kind, .inp = inp, .cast = {.out = out, .scale = scale}});
      EXPECT_EQ(out.values(), expected.values());
      const Buffer out_t(Dtype::kE4M3, {width, rows}), expected_t(Dtype::kE4M3, {width, rows});
      cpu::fp8_transpose({.out = expected_t, .inp = expected});
      cpu::fp8_activation_forward({.kind = kind, .inp = inp, .cast = {.out_t = out_t, .scale = scale}});
      EXPECT_EQ(out_t.values(), expected_t.values());
      const Buffer dout_t(Dtype::kE5M2, {wide, rows}), dexpected_t(Dtype::kE5M2, {wide, rows});
      cpu::fp8_cast({.out_t = dexpected_t, .inp = dmade, .scale = scale});
      cpu::fp8_activation_backward({.kind = kind, .dout = dout, .inp = inp, .cast = {.out_t = dout_t, .scale = scale}});
      EXPECT_EQ(dout_t.values(), dexpected_t.values());
    }
}

TEST(Fp8Norm, casts_what_the_norm_makes) {
  const int64_t rows = 5, width = 48;
  const Buffer scale(Dtype::kF32, {1}, {64.0});
  for (const Dtype type : kInputs)
    for (const Norm kind : {Norm::kLayerNorm, Norm::kRmsNorm}) {
      const Buffer inp(type, {rows, width}, random_values(rows * width, "inp"));
      const Buffer add(type, {rows, width}, random_values(rows * width, "add"));
      const Buffer weight(type, {width}, random_values(width, "weight"));
      const Buffer made(type, {rows, width}), sum(type, {rows, width}), sum_too(type, {rows, width});
      const Buffer mean(Dtype::kF32, {rows}), rstd(Dtype::kF32, {rows}), rstd_too(Dtype::kF32, {rows});
      const Buffer out(Dtype::kE4M3, {rows, width}), expected(Dtype::kE4M3, {rows, width});
      const Buffer amax(Dtype::kF32, {1}, {0.0}), amax_too(Dtype::kF32, {1}, {0.0});
      NormForward norm{.kind = kind, .rstd = rstd, .sum = sum, .inp = inp, .add = add, .weight = weight};
      if (kind == Norm::kLayerNorm) norm.mean = mean;
      NormForward apart = norm;
      apart.out = made;
      apart.sum = sum_too;
      apart.rstd = rstd_too;
      run_checked(cpu::norm_forward, apart);
      cpu::fp8_cast({.out = expected, .inp = made, .scale = scale, .amax = amax_too});
      run_checked(cpu::fp8_norm_forward, {.norm = norm, .cast = {.out = out, .scale = scale, .amax = amax}});
      EXPECT_TRUE(out.same_bits(expected));
      EXPECT_TRUE(sum.same_bits(sum_too) && rstd.same_bits(rstd_too) && amax.same_bits(amax_too));
    }
}

TEST(Fp8Cast, infinity_becomes_nan_and_amax_shows_it) {
  for (const Dtype to : kFormats) {
    const Buffer inp(Dtype::kF32, {1, 4}, {1.0, INFINITY, -INFINITY, 3e38}), scale(Dtype::kF32, {1}, {1024.0});
    const Buffer out(to, {1, 4}), amax(Dtype::kF32, {1}, {0.0}), counts(Dtype::kI64, {kNumFp8Counts}, {0, 0, 0});
    cpu::fp8_cast({.out = out, .inp = inp, .scale = scale, .amax = amax, .counts = counts});
    const Values values = out.values();
    EXPECT_TRUE(std::isnan(values[1]) && std::isnan(values[2]));
    EXPECT_EQ(values[3], number_of(last_finite(to), to)) << "finite, though its multiple is not";
    EXPECT_EQ(amax.values()[0], INFINITY);
    EXPECT_EQ(counts.values()[static_cast<size_t>(Fp8Count::kSaturated)], to == Dtype::kE4M3 ? 2 : 1);
    const Buffer bad(Dtype::kF32, {1, 2}, {NAN, 2.0});
    cpu::fp8_amax({.amax = amax, .inp = bad});
    EXPECT_TRUE(std::isnan(amax.values()[0])) << "NaN is more than infinity";
    cpu::fp8_amax({.amax = amax, .inp = inp});
    EXPECT_TRUE(std::isnan(amax.values()[0])) << "and stays";
  }
}

TEST(Fp8Transpose, moves_every_byte) {
  for (const auto& [rows, columns] : kShapes)
    for (const Dtype dtype : kFormats) {
      const Buffer inp(dtype, {rows, columns}, random_values(rows * columns, "inp")), out(dtype, {columns, rows});
      cpu::fp8_transpose({.out = out, .inp = inp});
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          ASSERT_EQ(fp8_bytes(Tensor(out))[c * rows + r], fp8_bytes(Tensor(inp))[r * columns + c]);
    }
}

// The largest power of two with which amax stays within half of the format's range.
TEST(Fp8Scales, leave_room_for_twice_the_largest_number) {
  for (const Dtype dtype : kFormats) {
    const double most = number_of(last_finite(dtype), dtype) / kFp8Headroom;
    Values amaxes;
    for (int exponent = -80; exponent <= 80; ++exponent)
      for (const double fraction : {1.0, 1.5, 1.74, 1.75, 1.76, 1.99}) amaxes.push_back(std::ldexp(fraction, exponent));
    const auto count = static_cast<int64_t>(amaxes.size());
    const Buffer scale(Dtype::kF32, {count}, Values(amaxes.size(), 0.0));
    const Buffer inverse(Dtype::kF32, {count, kFp8InverseStride});
    const Buffer amax(Dtype::kF32, {count}, amaxes);
    cpu::fp8_scales({.from = ScalesFrom::kUnset, .format = dtype, .scale = scale, .inverse = inverse, .amax = amax});
    const Values s = scale.values(), i = inverse.values(), a = amax.values();
    for (size_t n = 0; n < s.size(); ++n) {
      int exponent = 0;
      EXPECT_EQ(std::frexp(s[n], &exponent), 0.5) << "no power of two";
      EXPECT_EQ(s[n] * i[n * kFp8InverseStride], 1.0);
      if (exponent - 1 == kFp8MostExponent || exponent - 1 == -kFp8MostExponent) continue;
      EXPECT_LE(a[n] * s[n], most);
      EXPECT_GT(2 * a[n] * s[n], most);
    }
  }
}

TEST(Fp8Scales, follow_a_maximum_that_decays) {
  const Buffer scale(Dtype::kF32, {5}, {1, 1, 1, 0, 1});
  const Buffer inverse(Dtype::kF32, {5, kFp8InverseStride}, Values(5 * kFp8InverseStride, 1.0));
  const Buffer history(Dtype::kF32, {5}, {8, 8, 8, 0, 8}), amax(Dtype::kF32, {5}, {2, 16, INFINITY, 0, NAN});
  const Buffer good(Dtype::kF32, {1}, {1.0}), bad(Dtype::kF32, {1}, {NAN});
  Fp8Scales step{.from = ScalesFrom::kStep, .scale = scale, .inverse = inverse, .amax = amax, .history = history};
  step.grad_scale = bad;
  step.decay = 0.5f;
  run_checked(cpu::fp8_scales, step);
  EXPECT_EQ(history.values(), (Values{8, 8, 8, 0, 8})) << "a step that is not finite changes nothing";
  EXPECT_EQ(scale.values(), (Values{1, 1, 1, 0, 1}));
  step.grad_scale = good;
  cpu::fp8_scales(step);
  EXPECT_EQ(history.values(), (Values{4, 16, 8, 0, 8}));
  EXPECT_EQ(scale.values(), (Values{32, 8, 16, 1, 16}));
  const Buffer again(Dtype::kF32, {5});
  const Buffer of_inverse(Dtype::kF32, {5, kFp8InverseStride}, Values(5 * kFp8InverseStride, 1.0));
  cpu::fp8_scales({.from = ScalesFrom::kHistory, .scale = again, .inverse = of_inverse, .history = history});
  EXPECT_TRUE(again.same_bits(scale)) << "the scale follows from the history alone, which a checkpoint stores";
  EXPECT_TRUE(of_inverse.same_bits(inverse));
}

TEST(Fp8CountsToFloat, counts_have_64_bits) {
  const Buffer counts(Dtype::kI64, {3}, {0, 7, 0x1p33}), out(Dtype::kF32, {3});
  cpu::fp8_counts_to_float({.out = out, .counts = counts});
  EXPECT_EQ(out.values(), (Values{0, 7, 0x1p33}));
}

struct GemmForm {
  const char* name;
  Dtype a, b, out;
  float beta;
  bool bias;
};
// Forward, gradient of the input, gradient of the weight, and the second term of a sum.
constexpr GemmForm kForms[] = {
    {"forward", Dtype::kE4M3, Dtype::kE4M3, Dtype::kBF16, 0, true},
    {"forward fp32", Dtype::kE4M3, Dtype::kE4M3, Dtype::kF32, 0, false},
    {"input gradient", Dtype::kE5M2, Dtype::kE4M3, Dtype::kBF16, 0, false},
    {"input gradient added", Dtype::kE5M2, Dtype::kE4M3, Dtype::kBF16, 1, false},
    {"weight gradient", Dtype::kE5M2, Dtype::kE4M3, Dtype::kF32, 0, false},
    {"weight gradient added", Dtype::kE5M2, Dtype::kE4M3, Dtype::kF32, 1, false},
    {"weight gradient, all e4m3", Dtype::kE4M3, Dtype::kE4M3, Dtype::kF32, 1, false},
    {"operands the other way round", Dtype::kE4M3, Dtype::kE5M2, Dtype::kF32, 1, true},
};

TEST(Fp8Gemm, every_form_is_the_product_of_the_numbers) {
  for (const GemmForm& form : kForms)
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 16, 16}, {5, 32, 48}, {64, 16, 128}, {33, 80, 400}}) {
      const Buffer a(form.a, {m, k}, random_values(m * k, "a")), b(form.b, {n, k}, random_values(n * k, "b"));
      const Values start = random_values(m * n, "start");
      const Buffer out = form.beta == 0 ? Buffer(form.out, {m, n}) : Buffer(form.out, {m, n}, start);
      const Buffer bias = form.bias ? Buffer(form.out, {n}, random_values(n, "bias")) : Buffer();
      const Buffer inverse_a(Dtype::kF32, {1}, {0.25}), inverse_b(Dtype::kF32, {1}, {8.0});
      run_checked(cpu::fp8_gemm, {.out = out,
                                  .a = a,
                                  .b = b,
                                  .inverse_a = inverse_a,
                                  .inverse_b = inverse_b,
                                  .beta = form.beta,
                                  .bias = bias});
      const Values of_a = a.values(), of_b = b.values(), of_bias = bias.values();
      Values expected(start.size());
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < n; ++c) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i)
            sum += of_a[static_cast<size_t>(r * k + i)] * of_b[static_cast<size_t>(c * k + i)];
          const auto at = static_cast<size_t>(r * n + c);
          expected[at] =
              2.0 * sum + (form.beta == 0 ? 0.0 : start[at]) + (form.bias ? of_bias[static_cast<size_t>(c)] : 0);
        }
      expect_close(form.name, out.values(), expected, form.out == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
    }
}

// The error of quantization: each product of two rounded numbers is off by at most 2^-m1 + 2^-m2 of itself, half a unit
// of each mantissa; for E4M3 twice 2^-4 is an eighth.
TEST(Fp8Gemm, of_scaled_casts_is_within_the_formats_rounding) {
  constexpr int64_t m = 24, n = 32, k = 160;
  const Values of_a = random_values(m * k, "a", 1e-6), of_b = random_values(n * k, "b", 300.0);
  const Buffer a(Dtype::kF32, {m, k}, of_a), b(Dtype::kF32, {n, k}, of_b), out(Dtype::kF32, {m, n});
  const auto quantized = [](const Buffer& inp, Dtype format, const Buffer& out, const Buffer& inverse) {
    const Buffer amax(Dtype::kF32, {1}, {0.0}), scale(Dtype::kF32, {1}, {0.0});
    cpu::fp8_amax({.amax = amax, .inp = inp});
    cpu::fp8_scales({.from = ScalesFrom::kUnset, .format = format, .scale = scale, .inverse = inverse, .amax = amax});
    cpu::fp8_cast({.out = out, .inp = inp, .scale = scale});
  };
  const Buffer a8(Dtype::kE5M2, {m, k}), b8(Dtype::kE4M3, {n, k});
  const Buffer inverse_a(Dtype::kF32, {1, kFp8InverseStride}), inverse_b(Dtype::kF32, {1, kFp8InverseStride});
  quantized(a, Dtype::kE5M2, a8, inverse_a);
  quantized(b, Dtype::kE4M3, b8, inverse_b);
  cpu::fp8_gemm({.out = out,
                 .a = a8,
                 .b = b8,
                 .inverse_a = Tensor(inverse_a).flat(0, 1),
                 .inverse_b = Tensor(inverse_b).flat(0, 1)});
  const Values actual = out.values();
  double error = 0, size = 0;
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0, bound = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double product = of_a[static_cast<size_t>(r * k + i)] * of_b[static_cast<size_t>(c * k + i)];
        sum += product;
        bound += std::fabs(product) * (1.0 / 8 + 1.0 / 16 + 1.0 / 128);
      }
      const double difference = actual[static_cast<size_t>(r * n + c)] - sum;
      EXPECT_LE(std::fabs(difference), bound + 1e-6);
      error += difference * difference;
      size += sum * sum;
    }
  EXPECT_LT(std::sqrt(error / size), 0.1);
  EXPECT_GT(std::sqrt(error / size), 0.005) << "nothing was rounded";
}

}  // namespace
}  // namespace tri::test
