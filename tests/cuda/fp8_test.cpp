// FP8 on the GPU: casts, transposes and scales equal those of the CPU bit for bit; GEMMs agree to rounding.
#include <algorithm>
#include <cmath>

#include "kernels/core/dims.h"
#include "tests/cuda/op_compare.h"

namespace tri::test {
namespace {

constexpr Dtype kFormats[] = {Dtype::kE4M3, Dtype::kE5M2};
// Whole tiles of runs, runs that end inside a tile, and single elements.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},      {16, 16},   {64, 128},  {8, 200},
                                                   {72, 40},    {65, 63},   {129, 257}, {1000, 72},
                                                   {1008, 200}, {144, 264}, {272, 24},  {512, 1536}};

// The counts of a step so far, beyond which 32 bits would wrap.
constexpr double kManyCounted = 0x1p32 - 1;

Buffer one(double value) { return {Dtype::kF32, {1}, {value}}; }

// Numbers with outliers, zeros of both signs, numbers that are too small, and numbers that are not finite.
Values hard_values(int64_t count, bool finite) {
  Values values = random_values(count, "inp");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 7 == 3) values[i] *= 1024;
    if (i % 11 == 5) values[i] = i % 2 == 0 ? 0.0 : -0.0;
    if (i % 13 == 6) values[i] *= std::ldexp(1.0, -20);
    if (finite) continue;
    if (i % 101 == 7) values[i] = i % 2 == 0 ? INFINITY : -INFINITY;
    if (i % 103 == 8) values[i] = NAN;
  }
  return values;
}

// One scale with which no number saturates, so that all runs use the fast path, and one with which many do.
TEST(Fp8Cast, cuda_matches_cpu_bit_for_bit) {
  TRI_NEEDS_GPU();
  for (const auto& [rows, columns] : kShapes)
    for (const Dtype from : kTypes)
      for (const Dtype to : kFormats)
        for (const auto& [scale, finite] : {std::pair{4.0, true}, {4.0, false}, {0x1p-8, true}})
          for (const int form : {0, 1, 2}) {  // both orientations, only rows, only the transpose
            const Operands operands = {
                {"inp", {from, {rows, columns}, hard_values(rows * columns, finite)}},
                {"out", form == 2 ? Buffer() : Buffer(to, {rows, columns})},
                {"out_t", form == 1 ? Buffer() : Buffer(to, {columns, rows})},
                {"scale", one(scale)},
                {"amax", one(0.25)},
                {"counts", {Dtype::kI64, {kNumFp8Counts}, Values(kNumFp8Counts, kManyCounted)}},
                {"dbias", finite ? Buffer(Dtype::kF32, {columns}, random_values(columns, "dbias")) : Buffer()},
            };
            const auto make = TRI_MAKE(Fp8Cast{}, out, out_t, inp, scale, amax, counts, dbias);
            TRI_COMPARE(fp8_cast,
                        fmt::format("{} x {} {} to {}, form {}", rows, columns, enum_name(from), enum_name(to), form),
                        operands, make, Comparisons(same_bits, {{"dbias", elements(1e-2)}}));
          }
}

// Slices of one tensor and of several, with borders inside a block of threads and at its ends, and with padding; one
// scale with which no number saturates, and one with which many do.
TEST(Fp8Slice, cuda_matches_cpu_bit_for_bit) {
  TRI_NEEDS_GPU();
  constexpr int64_t kTensors = 4, kSlots = 6;
  for (const int64_t blocks : {1, 5, 8, 9, 64, 700})
    for (const int64_t each : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{100}, blocks})  // blocks per tensor
      for (const bool padded : {false, true})
        for (const bool finite : {true, false}) {
          Values owners;
          for (int64_t b = 0; b < blocks; ++b) {
            const int64_t tensor = b / each % (kTensors + (padded ? 1 : 0));
            owners.push_back(tensor == kTensors ? -1 : static_cast<double>(tensor));
          }
          const int64_t n = blocks * kBlock;
          const Operands operands = {
              {"inp", {Dtype::kF32, {n}, hard_values(n, finite)}},
              {"block_tensor", {Dtype::kI32, {blocks}, owners}},
              {"out", {Dtype::kE4M3, {n}}},
              {"slot", {Dtype::kI32, {kTensors}, {4, 0, 5, 2}}},
              {"scale", {Dtype::kF32, {kSlots}, {4, NAN, 0x1p-8, NAN, 256, 0}}},
              {"amax", {Dtype::kF32, {kSlots}, Values(kSlots, 0.25)}},
              {"counts", {Dtype::kI64, {kSlots, kNumFp8Counts}, Values(kSlots * kNumFp8Counts, kManyCounted)}},
          };
          const auto make = [](const Place& on) {
            return Fp8CastSlice{.quantized = {.out = on("out"),
                                              .slot = on("slot"),
                                              .scale = on("scale"),
                                              .amax = on("amax"),
                                              .counts = on("counts")},
                                .inp = on("inp"),
                                .block_tensor = on("block_tensor")};
          };
          TRI_COMPARE(fp8_cast_slice, fmt::format("{} blocks, {} a tensor", blocks, each), operands, make,
                      Comparisons(same_bits));
        }
}

// An activation that casts gives the quantized values, amax and counts of a cast of the plain activation's output.
TEST(Fp8Activation, casts_as_fp8_cast_does) {
  TRI_NEEDS_GPU();
  for (const auto& [rows, width] : kShapes)
    for (const Dtype from : kTypes)
      for (const Activation kind : kActivationKernels)
        for (const Dtype to : kFormats)
          for (const double factor : {8.0, 0x1p-8}) {
            SCOPED_TRACE(
                fmt::format("{} x {} {} {} to {}", rows, width, enum_name(kind), enum_name(from), enum_name(to)));
            const int64_t inputs = is_gated(kind) ? 2 : 1;
            const Values dout_values = hard_values(rows * width, true);
            const DeviceBuffer inp(Buffer(from, {rows, inputs * width}, random_values(rows * inputs * width, "pre")));
            const DeviceBuffer dout(Buffer(from, {rows, width}, dout_values)), scale(one(factor));
            for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
              const int64_t columns = pass == Pass::kForward ? width : inputs * width;
              const Buffer made(from, {rows, columns}), out(to, {rows, columns}), out_t(to, {columns, rows});
              const Buffer amax = one(0.0), counts(Dtype::kI64, {kNumFp8Counts}, Values(kNumFp8Counts, kManyCounted));
              const Buffer dbias(Dtype::kF32, {columns}, Values(static_cast<size_t>(columns), 1.0));
              const DeviceBuffer d_made(made);
              const bool forward = pass == Pass::kForward;
              std::vector<std::unique_ptr<DeviceBuffer>> kept;
              const auto cast_into_new = [&] {
                for (const Buffer* buffer : {&out, &out_t, &amax, &counts, &dbias})
                  kept.push_back(std::make_unique<DeviceBuffer>(*buffer));
                const size_t first = kept.size() - 5;
                Fp8Cast c{.out = *kept[first],
                          .out_t = *kept[first + 1],
                          .scale = scale,
                          .amax = *kept[first + 2],
                          .counts = *kept[first + 3]};
                if (forward && to == Dtype::kE5M2) c.out_t = {};  // only rows, or only the transpose
                if (forward && factor == 8.0) c.out = c.out_t.empty() ? c.out : Tensor();
                // Backward with and without the bias gradient; without it once as the transpose only.
                if (!forward && factor == 8.0) c.dbias = *kept[first + 4];
                if (!forward && factor != 8.0 && to == Dtype::kE4M3) c.out = {};
                return c;
              };
              Fp8Cast apart = cast_into_new();
              apart.inp = d_made;
              const Fp8Cast at_once = cast_into_new();
              if (forward) {
                cuda::activation_forward({.kind = kind, .out = d_made, .inp = inp}, test_stream());
                cuda::fp8_activation_forward({.kind = kind, .inp = inp, .cast = at_once}, test_stream());
              } else {
                cuda::activation_backward({.kind = kind, .dinp = d_made, .dout = dout, .inp = inp}, test_stream());
                cuda::fp8_activation_backward({.kind = kind, .dout = dout, .inp = inp, .cast = at_once}, test_stream());
              }
              cuda::fp8_cast(apart, test_stream());
              const Buffer* const shapes[] = {&out, &out_t, &amax, &counts, &dbias};
              for (size_t i = 0; i < 5; ++i)
                EXPECT_EQ(difference(kept[5 + i]->values(*shapes[i]), kept[i]->values(*shapes[i]),
                                     shapes[i] == &dbias ? elements(1e-5) : same_bits),
                          "")
                    << i;
            }
          }
}

// A norm that casts gives the quantized values, amax and counts of a cast of the plain norm's output, and the same
// statistics and sums: for rows of one warp and of several, rows that end inside a pack, and rows too wide for shared
// memory.
TEST(Fp8Norm, casts_as_fp8_cast_does) {
  TRI_NEEDS_GPU();
  for (const auto& [rows, width] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {1, 8}, {7, 64}, {65, 63}, {300, 768}, {2000, 1600}, {129, 5120}, {40, 12288}, {9, 12296}, {9, 33001}})
    for (const Dtype type : kTypes)
      for (const Norm kind : {Norm::kLayerNorm, Norm::kRmsNorm})
        for (const int64_t parts : {0, 1, 3})
          for (const double factor : {8.0, 512.0}) {
            SCOPED_TRACE(fmt::format("{} x {} {} {}, {} parts", rows, width, enum_name(kind), enum_name(type), parts));
            const bool layernorm = kind == Norm::kLayerNorm;
            const Buffer row(Dtype::kF32, {rows}), plain(type, {rows, width}), quantized(Dtype::kE4M3, {rows, width});
            const Buffer number = one(0.0), counts(Dtype::kI64, {kNumFp8Counts}, Values(kNumFp8Counts, kManyCounted));
            const auto vector = [&](const char* name) { return Buffer(type, {width}, random_values(width, name)); };
            const DeviceBuffer inp(Buffer(type, {rows, width}, hard_values(rows * width, true)));
            const DeviceBuffer add(
                parts == 0 ? Buffer() : Buffer(type, {parts, rows, width}, random_values(parts * rows * width, "add")));
            const DeviceBuffer add_bias(vector("add_bias")), weight(vector("weight")), bias(vector("bias"));
            const DeviceBuffer scale(one(factor)), made(plain);
            const DeviceBuffer means[2] = {DeviceBuffer(row), DeviceBuffer(row)};
            const DeviceBuffer rstds[2] = {DeviceBuffer(row), DeviceBuffer(row)};
            const DeviceBuffer sums[2] = {DeviceBuffer(plain), DeviceBuffer(plain)};
            const DeviceBuffer outs[2] = {DeviceBuffer(quantized), DeviceBuffer(quantized)};
            const DeviceBuffer amaxes[2] = {DeviceBuffer(number), DeviceBuffer(number)};
            const DeviceBuffer found[2] = {DeviceBuffer(counts), DeviceBuffer(counts)};
            const auto norm = [&](int at) {
              NormForward n{.kind = kind, .rstd = rstds[at], .inp = inp, .weight = weight};
              if (layernorm) n.mean = means[at];
              if (layernorm) n.bias = bias;
              if (parts == 0) return n;
              n.sum = sums[at];
              n.add = add;
              n.add_bias = add_bias;
              return n;
            };
            const auto cast = [&](int at) {
              return Fp8Cast{.out = outs[at], .scale = scale, .amax = amaxes[at], .counts = found[at]};
            };
            NormForward apart = norm(0);
            apart.out = made;
            cuda::norm_forward(apart, test_stream());
            Fp8Cast of_made = cast(0);
            of_made.inp = made;
            cuda::fp8_cast(of_made, test_stream());
            const Fp8NormForward at_once{.norm = norm(1), .cast = cast(1)};
            check(at_once);
            cuda::fp8_norm_forward(at_once, test_stream());
            const auto same = [&](const DeviceBuffer(&both)[2], const Buffer& shape, const char* what) {
              EXPECT_EQ(difference(both[1].values(shape), both[0].values(shape), same_bits), "") << what;
            };
            same(outs, quantized, "quantized");
            same(amaxes, number, "amax");
            same(found, counts, "counts");
            same(rstds, row, "rstd");
            if (layernorm) same(means, row, "mean");
            if (parts > 0) same(sums, plain, "sum");
          }
}

// Every bf16 number, and every float next to a border between two FP8 numbers.
TEST(Fp8Cast, cuda_rounds_every_border_as_the_cpu_does) {
  TRI_NEEDS_GPU();
  for (const Dtype to : kFormats) {
    Values all, borders;
    for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back(std::bit_cast<float>(bits << 16));
    for (int code = 0; code < fp8_format(to).largest; ++code)
      for (const float sign : {1.0f, -1.0f}) {
        const auto& table = fp8_table(to);
        const float middle = (table[static_cast<size_t>(code)] + table[static_cast<size_t>(code) + 1]) / 2;
        for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)})
          borders.push_back(sign * value);
      }
    for (const Values& values : {all, borders}) {
      const auto count = static_cast<int64_t>(values.size());
      const Operands operands = {
          {"inp", {Dtype::kF32, {1, count}, values}}, {"out", {to, {1, count}}}, {"scale", one(1)}};
      const auto make = TRI_MAKE(Fp8Cast{}, out, inp, scale);
      TRI_COMPARE(fp8_cast, std::string(enum_name(to)), operands, make, Comparisons(same_bits));
    }
  }
}

TEST(Fp8Transpose, cuda_matches_cpu_bit_for_bit) {
  TRI_NEEDS_GPU();
  for (const auto& [rows, columns] : kShapes) {
    const Operands operands = {{"inp", {Dtype::kE5M2, {rows, columns}, random_values(rows * columns, "inp")}},
                               {"out", {Dtype::kE5M2, {columns, rows}}}};
    const auto make = TRI_MAKE(Fp8Transpose{}, out, inp);
    TRI_COMPARE(fp8_transpose, fmt::format("{} x {}", rows, columns), operands, make, Comparisons(same_bits));
  }
}

TEST(Fp8Amax, cuda_matches_cpu_bit_for_bit) {
  TRI_NEEDS_GPU();
  for (const auto& [rows, columns] : kShapes)
    for (const Dtype from : kTypes)
      for (const bool finite : {true, false}) {
        const Operands operands = {{"inp", {from, {rows, columns}, hard_values(rows * columns, finite)}},
                                   {"amax", one(0.0)}};
        const auto make = TRI_MAKE(Fp8Amax{}, amax, inp);
        TRI_COMPARE(fp8_amax, fmt::format("{} x {}", rows, columns), operands, make, Comparisons(same_bits));
      }
}

TEST(Fp8Scales, cuda_matches_cpu_bit_for_bit) {
  TRI_NEEDS_GPU();
  Values amax, history;
  for (int exponent = -80; exponent <= 80; ++exponent)
    for (const double fraction : {1.0, 1.74, 1.75, 1.76}) {
      amax.push_back(std::ldexp(fraction, exponent));
      history.push_back(std::ldexp(fraction, -exponent));
    }
  for (const double special : {0.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    amax.push_back(special);
    history.push_back(3.0);
  }
  const auto count = static_cast<int64_t>(amax.size());
  Values scale(amax.size(), 0.0);
  for (size_t i = 0; i < scale.size(); i += 3) scale[i] = 2.0;
  for (const Dtype format : kFormats)
    for (const ScalesFrom from : {ScalesFrom::kUnset, ScalesFrom::kHistory, ScalesFrom::kStep})
      for (const double grad_scale : {1.0, static_cast<double>(NAN)}) {
        const Operands operands = {
            {"scale", {Dtype::kF32, {count}, scale}},
            {"inverse", {Dtype::kF32, {count, kFp8InverseStride}, Values(scale.size() * kFp8InverseStride, 7.0)}},
            {"amax", {Dtype::kF32, {count}, amax}},
            {"history", {Dtype::kF32, {count}, history}},
            {"grad_scale", one(grad_scale)}};
        const auto make = TRI_MAKE((Fp8Scales{.from = from, .format = format, .decay = 0.9f}), scale, inverse, amax,
                                   history, grad_scale);
        TRI_COMPARE(fp8_scales, std::string(enum_name(format)), operands, make, Comparisons(same_bits));
      }
}

TEST(Fp8CountsToFloat, cuda_matches_cpu_bit_for_bit) {
  TRI_NEEDS_GPU();
  const Operands operands = {{"counts", {Dtype::kI64, {5}, {0, 7, 16777217, 0x1p32, 0x1p40 + 1}}},
                             {"out", {Dtype::kF32, {5}}}};
  const auto make = TRI_MAKE(Fp8CountsToFloat{}, out, counts);
  TRI_COMPARE(fp8_counts_to_float, "counts", operands, make, Comparisons(same_bits));
}

struct GemmForm {
  const char* name;
  Dtype a, b, out;
  float beta;
  bool bias;
};
constexpr GemmForm kForms[] = {
    {"forward", Dtype::kE4M3, Dtype::kE4M3, Dtype::kBF16, 0, true},
    {"forward without bias", Dtype::kE4M3, Dtype::kE4M3, Dtype::kBF16, 0, false},
    {"forward added", Dtype::kE4M3, Dtype::kE4M3, Dtype::kBF16, 1, false},
    {"input gradient", Dtype::kE5M2, Dtype::kE4M3, Dtype::kBF16, 0, false},
    {"input gradient added", Dtype::kE5M2, Dtype::kE4M3, Dtype::kBF16, 1, false},
    {"weight gradient", Dtype::kE5M2, Dtype::kE4M3, Dtype::kF32, 0, false},
    {"weight gradient added", Dtype::kE5M2, Dtype::kE4M3, Dtype::kF32, 1, false},
    {"weight gradient, all e4m3", Dtype::kE4M3, Dtype::kE4M3, Dtype::kF32, 1, false},
};

// Fast accumulation keeps 14 bits of the sums of products (DeepSeek-V3, arXiv 2412.19437, section 3.5.2), truncated
// after every 32 products: at K 3072 single sums were up to 1.8 % off.
TEST(Fp8Gemm, cuda_matches_cpu_to_rounding) {
  TRI_NEEDS_GPU();
  for (const GemmForm& form : kForms)
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{16, 16, 16}, {5, 32, 48}, {128, 256, 512}, {200, 80, 400}, {1024, 768, 3072}})
      for (const Fp8Accumulation accumulation : {Fp8Accumulation::kFp32, Fp8Accumulation::kFast}) {
        const Operands operands = {
            {"a", {form.a, {m, k}, random_values(m * k, "a")}},
            {"b", {form.b, {n, k}, random_values(n * k, "b")}},
            {"inverse_a", one(0.25)},
            {"inverse_b", one(8.0)},
            {"bias", form.bias ? Buffer(form.out, {n}, random_values(n, "bias")) : Buffer()},
            {"out", form.beta == 0 ? Buffer(form.out, {m, n}) : Buffer(form.out, {m, n}, random_values(m * n, "out"))},
        };
        const double fp32 = accumulation == Fp8Accumulation::kFast ? 4e-2 : 1e-3;
        const auto make =
            TRI_MAKE((Fp8Gemm{.beta = form.beta, .accumulation = accumulation}), out, a, b, inverse_a, inverse_b, bias);
        TRI_COMPARE(fp8_gemm, fmt::format("{} {} x {} x {}", form.name, m, n, k), operands, make,
                    Comparisons(rounding_of(form.out, fp32)));
      }
}

// Autotuning accepts FP8 GEMMs and stores a choice with either accumulation where that is allowed; their results stay
// correct.
TEST(Fp8Gemm, search_keeps_its_choices_and_results_stay_right) {
  TRI_NEEDS_GPU();
  const int64_t m = 256, n = 512, k = 384;
  const Buffer a(Dtype::kE5M2, {m, k}, random_values(m * k, "a")), b(Dtype::kE4M3, {n, k}, random_values(n * k, "b"));
  const Buffer inverse = one(0.5), out(Dtype::kBF16, {m, n});
  const DeviceBuffer d_inverse(inverse), d_out(out);
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  const auto stream = device->make_stream("test");
  GemmSearch& search = *device->gemm_search();
  const auto args = [](Tensor out, Tensor a, Tensor b, Tensor inverse, Fp8Accumulation accumulation) {
    return Fp8Gemm{
        .out = out, .a = a, .b = b, .inverse_a = inverse, .inverse_b = inverse, .accumulation = accumulation};
  };
  const Buffer expected = out;
  cpu::fp8_gemm(args(expected, a, b, inverse, Fp8Accumulation::kFp32));
  for (const Fp8Accumulation accumulation : {Fp8Accumulation::kFp32, Fp8Accumulation::kFast}) {
    {
      const DeviceBuffer searched_a(a), searched_b(b);
      const AnyGemm g = args(d_out, searched_a, searched_b, d_inverse, accumulation);
      search.search({&g, 1}, *stream);
      const GemmChoices choices = search.choices();
      const std::string shape = "256x512x384,nt,e5m2*e4m3,bf16";
      const bool fast = accumulation == Fp8Accumulation::kFast;
      EXPECT_TRUE(std::ranges::any_of(choices.choices, [&](const GemmChoice& choice) {
        return choice.shape.starts_with(shape + (fast ? ",fast," : ",256")) && (fast || choice.form == "plain");
      })) << shape;
      EXPECT_TRUE(search.take_choices(choices));
      EXPECT_EQ(search.choices(), choices) << "not taken back";
    }
    const DeviceBuffer d_a(a), d_b(b);
    fp8_gemm(args(d_out, d_a, d_b, d_inverse, accumulation), *stream);
    stream->synchronize();
    EXPECT_EQ(difference(d_out.values(out), expected.values(), rounding_of(Dtype::kBF16)), "");
  }
}

}  // namespace
}  // namespace tri::test
