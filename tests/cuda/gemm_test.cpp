// gemm through cuBLASLt against the CPU reference.
#include "kernels/cuda/gemm.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/compare.h"

#include <tuple>

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
  cuda::gemm(args(d_out, d_a, d_b, d_bias), test_stream());
  cuda::gemm(args(d_again, d_a, d_b, d_bias), test_stream());
  const double tolerance = c.out == Dtype::kBF16 ? kBf16Tolerance : 1e-5 * std::sqrt(static_cast<double>(c.k));
  EXPECT_EQ(difference(d_out.values(start), expected.values(), elements(tolerance)), "");
  EXPECT_EQ(d_out.values(start), d_again.values(start)) << "not deterministic";
}

TEST(CudaGemm, scales_the_product_and_adds_another_matrix) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{8, 8}, {128, 384}, {264, 1024}}) {
      SCOPED_TRACE(fmt::format("{} x {} {}", rows, columns, enum_name(dtype)));
      const Buffer x(dtype, {rows, columns}, random_values(rows * columns, "x"));
      const Buffer p(dtype, {rows, rows}, random_values(rows * rows, "p"));
      const Buffer start(dtype, {rows, columns}), expected = start;
      const auto args = [](Tensor out, Tensor a, Tensor b) {
        return Gemm{.out = out, .a = a, .b = b, .alpha = 2.0315f, .beta = -4.775f, .addend = b};
      };
      cpu::gemm(args(expected, p, x));
      const DeviceBuffer d_p(p), d_x(x), d_out(start), d_again(start);
      cuda::gemm(args(d_out, d_p, d_x), test_stream());
      cuda::gemm(args(d_again, d_p, d_x), test_stream());
      const double tolerance = dtype == Dtype::kBF16 ? kBf16Tolerance : 1e-5 * std::sqrt(static_cast<double>(rows));
      EXPECT_EQ(difference(d_out.values(start), expected.values(), elements(tolerance)), "");
      EXPECT_EQ(d_out.values(start), d_again.values(start)) << "not deterministic";
    }
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
              // Tensor-core GEMMs of bf16 require rows of whole 16-byte vectors, which the model's shapes have.
              if (inputs == Dtype::kBF16 && (m % 8 || n % 8 || k % 8)) continue;
              expect_cuda_matches_cpu({m, n, k, trans_a, trans_b, bias, beta, inputs, out});
            }
}

enum class Extra { kGelu, kGeluBackward, kGeluBackwardAndBias, kWeightGradientAndBias };

// In every form: epilogue and bias gradient inside the GEMM, and as separate kernels.
void expect_forms_match_cpu(Dtype dtype, int64_t m, int64_t n, int64_t k, Extra extra) {
  SCOPED_TRACE(fmt::format("{} {} M {} N {} K {}", static_cast<int>(extra), enum_name(dtype), m, n, k));
  const bool wgrad = extra == Extra::kWeightGradientAndBias, forward = extra == Extra::kGelu,
             biased = extra == Extra::kGeluBackwardAndBias;
  const Dtype out_type = wgrad ? Dtype::kF32 : dtype;
  const Buffer a =
      wgrad ? Buffer(dtype, {k, m}, random_values(k * m, "a")) : Buffer(dtype, {m, k}, random_values(m * k, "a"));
  const Buffer b =
      forward ? Buffer(dtype, {n, k}, random_values(k * n, "b")) : Buffer(dtype, {k, n}, random_values(k * n, "b"));
  const Buffer bias = forward ? Buffer(dtype, {n}, random_values(n, "bias")) : Buffer();
  const Buffer pre = wgrad     ? Buffer()
                     : forward ? Buffer(dtype, {m, n})
                               : Buffer(dtype, {m, n}, random_values(m * n, "pre"));
  const int64_t dbias_size = wgrad ? m : n;
  const Buffer dbias =
      wgrad || biased ? Buffer(Dtype::kF32, {dbias_size}, random_values(dbias_size, "dbias")) : Buffer();
  const Buffer out = wgrad ? Buffer(out_type, {m, n}, random_values(m * n, "out")) : Buffer(out_type, {m, n});
  const auto args = [&](Tensor out, Tensor a, Tensor b, Tensor bias, Tensor pre, Tensor dbias) {
    return Gemm{.out = out,
                .a = a,
                .b = b,
                .trans_a = wgrad ? Trans::kYes : Trans::kNo,
                .trans_b = forward ? Trans::kYes : Trans::kNo,
                .beta = wgrad ? 1.0f : 0.0f,
                .bias = bias,
                .epilogue = wgrad     ? Epilogue::kNone
                            : forward ? Epilogue::kGelu
                                      : Epilogue::kGeluBackward,
                .pre = pre,
                .dbias = dbias};
  };
  const Buffer c_out = out, c_pre = pre, c_dbias = dbias;
  cpu::gemm(args(c_out, a, b, bias, c_pre, c_dbias));
  const double tolerance = out_type == Dtype::kBF16 ? kBf16Tolerance : 1e-5 * std::sqrt(static_cast<double>(k));
  cuda::GemmEngine& gemms = test_stream().context().gemms();
  for (const auto form : {cuda::GemmForm::kPlain, cuda::GemmForm::kEpilogue, cuda::GemmForm::kFused}) {
    SCOPED_TRACE(cuda::name_of(form));
    const DeviceBuffer d_a(a), d_b(b), d_bias(bias), d_pre(pre), d_dbias(dbias), d_out(out);
    const bool done =
        gemms.multiply_as(cuda::PlannedGemm(args(d_out, d_a, d_b, d_bias, d_pre, d_dbias)), form, test_stream());
    EXPECT_TRUE(done || form != cuda::GemmForm::kPlain);  // the library may lack the other forms
    if (!done) continue;
    EXPECT_EQ(difference(d_out.values(out), c_out.values(), elements(tolerance)), "");
    EXPECT_EQ(difference(d_pre.values(pre), c_pre.values(), elements(tolerance)), "") << "pre";
    // With GeLU's gradient the sums are of either rounded or unrounded numbers.
    const double dbias_tolerance =
        biased && dtype == Dtype::kBF16 ? kBf16Tolerance : 1e-5 * std::sqrt(static_cast<double>(biased ? m : k));
    EXPECT_EQ(difference(d_dbias.values(dbias), c_dbias.values(), elements(dbias_tolerance)), "") << "dbias";
  }
}

TEST(CudaGemm, every_form_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const Extra extra :
       {Extra::kGelu, Extra::kGeluBackward, Extra::kGeluBackwardAndBias, Extra::kWeightGradientAndBias})
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const auto& [m, n, k] : {std::tuple{8, 16, 8}, {64, 256, 128}, {520, 384, 136}})
        expect_forms_match_cpu(dtype, m, n, k, extra);
}

TEST(CudaGemm, search_keeps_its_choices_and_results_stay_right) {
  TRI_NEEDS_GPU();
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  const auto stream = device->make_stream("test");
  const int64_t m = 256, n = 512, k = 128;
  const Buffer a(Dtype::kBF16, {m, k}, random_values(m * k, "a")), b(Dtype::kBF16, {n, k}, random_values(n * k, "b"));
  const Buffer out(Dtype::kBF16, {m, n}), pre(Dtype::kBF16, {m, n});
  const auto args = [](Tensor out, Tensor a, Tensor b, Tensor pre) {
    return Gemm{.out = out, .a = a, .b = b, .trans_b = Trans::kYes, .epilogue = Epilogue::kGelu, .pre = pre};
  };
  {
    const DeviceBuffer d_a(a), d_b(b), d_out(out), d_pre(pre);
    const AnyGemm g = args(d_out, d_a, d_b, d_pre);
    GemmSearch& search = *device->gemm_search();
    search.search({&g, 1}, *stream);
    const GemmChoices choices = search.choices();
    ASSERT_EQ(choices.choices.size(), 1u);
    EXPECT_TRUE(choices.choices[0].shape.starts_with("256x512x128,nt,bf16,bf16,gelu")) << choices.choices[0].shape;
    search.search({&g, 1}, *stream);
    EXPECT_TRUE(search.take_choices(choices));
    EXPECT_EQ(search.choices(), choices) << "searched again, or not taken back";
  }
  const Buffer expected = out, expected_pre = pre;
  cpu::gemm(args(expected, a, b, expected_pre));
  const DeviceBuffer d_a(a), d_b(b), d_out(out), d_pre(pre);
  gemm(args(d_out, d_a, d_b, d_pre), *stream);
  stream->synchronize();
  EXPECT_EQ(difference(d_out.values(out), expected.values(), elements(kBf16Tolerance)), "");
}

// The layers' shapes: more tiles than the GPU has multiprocessors, and fewer.
TEST(CudaGemm, leaving_multiprocessors_to_other_streams_changes_no_bit) {
  TRI_NEEDS_GPU();
  for (const auto& [m, n, k] : {std::tuple{4096, 6144, 1024}, {4096, 1000, 4096}, {256, 512, 2048}})
    for (const Trans trans_b : {Trans::kYes, Trans::kNo}) {
      const Buffer a(Dtype::kBF16, {m, k}, random_values(int64_t{m} * k, "a"));
      const Buffer b = trans_b == Trans::kYes ? Buffer(Dtype::kBF16, {n, k}, random_values(int64_t{n} * k, "b"))
                                              : Buffer(Dtype::kBF16, {k, n}, random_values(int64_t{k} * n, "b"));
      const Buffer out(Dtype::kBF16, {m, n});
      const DeviceBuffer d_a(a), d_b(b);
      const auto product = [&](bool leaves) {
        const DeviceBuffer d_out(out);
        test_stream().leave_room(leaves);
        cuda::gemm({.out = d_out, .a = d_a, .b = d_b, .trans_b = trans_b}, test_stream());
        test_stream().leave_room(false);
        return d_out.values(out);
      };
      EXPECT_EQ(product(false), product(true)) << m << " x " << n << " x " << k;
    }
}

TEST(CudaGemm, a_stored_choice_of_an_unknown_form_or_algorithm_is_refused) {
  TRI_NEEDS_GPU();
  const Buffer a(Dtype::kBF16, {64, 64}, random_values(64 * 64, "a")), out(Dtype::kBF16, {64, 64});
  const DeviceBuffer d_a(a), d_out(out);
  const AnyGemm g = Gemm{.out = d_out, .a = d_a, .b = d_a};
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  const auto stream = device->make_stream("test");
  device->gemm_search()->search({&g, 1}, *stream);
  const GemmChoices known = device->gemm_search()->choices();
  ASSERT_EQ(known.choices.size(), 1u);
  GemmChoices unknown = known, damaged = known, of_others = known;
  unknown.choices[0].form = "folded";
  damaged.choices[0].algorithm.back() = 'x';
  of_others.library += " of another version";
  of_others.choices[0].form = "folded";
  for (const auto& [choices, accepted, without] :
       {std::tuple{known, true, 0u}, {unknown, false, 1u}, {damaged, false, 1u}, {of_others, true, 1u}}) {
    const auto other = value_or_throw(open_device(DeviceKind::kCuda, 0));
    EXPECT_EQ(other->gemm_search()->take_choices(choices).ok(), accepted) << choices.choices[0].form;
    EXPECT_EQ(other->gemm_search()->without_choice({&g, 1}).size(), without) << choices.choices[0].form;
  }
}

TEST(CudaGemm, devices_share_neither_choices_nor_scratch) {
  TRI_NEEDS_GPU();
  const Buffer a(Dtype::kBF16, {64, 64}, random_values(64 * 64, "a")), out(Dtype::kBF16, {64, 64});
  const DeviceBuffer d_a(a), d_out(out);
  const AnyGemm g = Gemm{.out = d_out, .a = d_a, .b = d_a};
  const auto device = value_or_throw(open_device(DeviceKind::kCuda, 0));
  const auto stream = device->make_stream("test");
  device->gemm_search()->search({&g, 1}, *stream);
  EXPECT_EQ(device->gemm_search()->rows().size(), 1u);
  const auto other = value_or_throw(open_device(DeviceKind::kCuda, 0));
  EXPECT_TRUE(other->gemm_search()->rows().empty());
}

// If K is split over blocks, their sums are not rounded to bf16 before they are added.
TEST(CudaGemm, partial_sums_are_added_in_fp32) {
  TRI_NEEDS_GPU();
  cublasLtHandle_t handle = nullptr;
  TRI_CUBLAS(cublasLtCreate(&handle));
  void* const nowhere = reinterpret_cast<void*>(uintptr_t{1} << 40);  // only shapes are used
  int algorithms = 0;
  for (const auto& [m, n, k] :
       {std::tuple<int64_t, int64_t, int64_t>{64, 64, 65536}, {128, 256, 16384}, {512, 64, 8192}})
    for (const bool trans_b : {false, true}) {
      const Gemm g{.out = Tensor(nowhere, Dtype::kBF16, {m, n}),
                   .a = Tensor(nowhere, Dtype::kBF16, {m, k}),
                   .b = trans_b ? Tensor(nowhere, Dtype::kBF16, {n, k}) : Tensor(nowhere, Dtype::kBF16, {k, n}),
                   .trans_b = trans_b ? Trans::kYes : Trans::kNo};
      const cuda::GemmPlan plan(cuda::PlannedGemm(g), cuda::GemmForm::kPlain);
      for (cublasLtMatmulAlgo_t algorithm : plan.algorithms(handle, 64, 256)) {
        uint32_t reduction = 0;
        TRI_CUBLAS(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                        sizeof reduction, nullptr));
        EXPECT_TRUE(reduction == CUBLASLT_REDUCTION_SCHEME_NONE || reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
            << reduction;
        ++algorithms;
        // The same algorithm, stored by an earlier run with another scheme, is refused.
        const uint32_t rounded = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
        TRI_CUBLAS(cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &rounded,
                                                        sizeof rounded));
        EXPECT_FALSE(plan.takes(handle, algorithm));
      }
    }
  EXPECT_GT(algorithms, 0);
  cublasLtDestroy(handle);
}

}  // namespace
}  // namespace tri::test
