// FP8 GEMMs, emulated on the CPU: every layout trains like one rank except for rounding noise; the same layout gives
// equal bits twice.
#include "io/base/random.h"
#include "tests/hangs/on_transfer.h"
#include "tests/hangs/stream_task.h"
#include "tests/mp/layout.h"

namespace tri {
namespace {

constexpr GemmFormat kFp8 = GemmFormat::kFp8;

Layout fp8(Layout layout) {
  layout.wide = true;
  layout.gemms = kFp8;
  layout.steps = kStepsOfRareRounding;
  if (test_device_kind() == DeviceKind::kCuda) layout.precision = Dtype::kBF16;  // FP8 GEMMs on GPUs need it
  return layout;
}

std::vector<Layout> matrix() {
  using enum Schedule;
  const auto P = Block::kParallel;
  const auto B = Dtype::kBF16;
  const auto norms = Recompute::kNorms, selective = Recompute::kSelective, full = Recompute::kFull;
  std::vector<Layout> rows = {
      {.dp = 2, .zero = 2},
      {.dp = 4, .zero = 1, .precision = B, .optimizer = OptimizerKind::kLamb},
      {.dp = 2, .tp = 2, .zero = 1, .precision = B, .moments = B},
      {.tp = 2, .llama = true, .recompute = norms},
      {.dp = 2, .tp = 2, .llama = true, .gemma = true, .recompute = norms},
      {.tp = 4, .micro_batch = 4},
      {.tp = 2, .block = P, .recompute = selective},
      {.cp = 2, .llama = true, .micro_batch = 2},
      {.dp = 2, .tp = 2, .cp = 2, .zero = 1, .precision = B, .llama = true, .recompute = full, .micro_batch = 2},
      {.pp = 4, .recompute = full},
      {.pp = 2, .chunks = 2, .schedule = kInterleaved, .llama = true, .compute_layers = 1},
      {.tp = 2, .pp = 2, .recompute = full, .compute_layers = 1},
      {.tp = 2, .llama = true, .olmo2 = true, .recompute = selective},
      {.dp = 2, .llama = true, .olmo2 = true, .recompute = full, .compute_layers = 1},
      {.tp = 2, .block = P, .neox = true, .recompute = norms},
      {.dp = 2, .block = P, .precision = B, .neox = true},
      // Weights stored in FP8: every axis alone, every level of ZeRO, alongside layers without FP8.
      {.dp = 2, .zero = 0, .precision = B, .llama = true, .compute_layers = 1},
      {.dp = 2, .zero = 2, .precision = B, .moments = B, .tied = false, .bucket_elements = 20000, .compute_layers = 1},
      {.tp = 4, .precision = B, .recompute = selective},
      {.dp = 2, .tp = 2, .precision = B, .optimizer = OptimizerKind::kMuon, .compute_layers = 1},
      {.pp = 2, .chunks = 2, .schedule = kInterleaved, .precision = B, .recompute = full},
      {.dp = 2, .tp = 2, .precision = B, .llama = true, .qkv_bias = true, .recompute = selective},
      {.dp = 2, .tp = 2, .recompute = selective, .fp8_gradients = Dtype::kE4M3},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .schedule = kGpipe, .block = P, .precision = B, .tied = false},
      // experts, whose rows are sent as FP8
      {.dp = 2, .zero = 1, .llama = true, .moe = true, .ep = 2},
      {.dp = 4, .zero = 2, .precision = B, .llama = true, .moe = true, .ep = 2, .recompute = full},
      {.tp = 2, .llama = true, .moe = true, .ep = 2, .recompute = selective, .micro_batch = 2},
      {.dp = 2,
       .tp = 2,
       .precision = B,
       .llama = true,
       .moe = true,
       .sigmoid = true,
       .ep = 4,
       .recompute = norms,
       .micro_batch = 2,
       .compute_layers = 1},
      {.dp = 2, .precision = B, .llama = true, .moe = true, .ep = 2, .ep_transfers = Transfers::kCollectives},
      {.pp = 2, .llama = true, .moe = true, .recompute = full, .compute_layers = 1},
      {.pp = 2, .schedule = kZbH1, .llama = true, .moe = true, .compute_layers = 1},
      {.tp = 2,
       .pp = 2,
       .schedule = kZbH1,
       .precision = B,
       .llama = true,
       .moe = true,
       .ep = 2,
       .recompute = full,
       .micro_batch = 2},
      {.dp = 2,
       .tp = 2,
       .pp = 2,
       .chunks = 2,
       .zero = 1,
       .schedule = kInterleaved,
       .precision = B,
       .llama = true,
       .recompute = norms},
  };
  rows.push_back(rows.back());
  rows.back().overlap = false;
  // Weight gradients that are computed later; `wide` has four layers.
  rows.insert(rows.end(), {{.pp = 2, .schedule = kZbH1, .llama = true, .compute_layers = 1},
                           {.pp = 2, .chunks = 2, .schedule = kZbV, .llama = true, .compute_layers = 1},
                           {.tp = 2, .pp = 2, .schedule = kZbH1, .recompute = full, .compute_layers = 1},
                           {.pp = 2, .schedule = kZbH1, .block = P, .precision = B, .recompute = selective},
                           {.tp = 2, .pp = 2, .schedule = kZbH1, .block = P, .neox = true, .recompute = norms},
                           {.dp = 2,
                            .tp = 2,
                            .pp = 2,
                            .zero = 2,
                            .schedule = kZbH1,
                            .precision = B,
                            .llama = true,
                            .recompute = selective,
                            .layers = "1,3"}});
  for (Layout& layout : rows) layout = on_test_device(fp8(layout));
  return rows;
}

TEST(Fp8, every_layout_trains_like_one_rank) {
  for (const Layout& layout : matrix())
    if (layout.ranks() <= test_job()->world_size()) expect_like_one_rank(layout);
}

TEST(Fp8, a_split_backward_pass_has_the_bits_of_a_whole_one) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
    for (const bool moe : {false, true}) {
      Layout layout = on_test_device(fp8({.pp = 2, .llama = true, .moe = moe, .recompute = recompute}));
      if (layout.ranks() > test_job()->world_size()) continue;
      const History whole = train(layout, false);
      layout.schedule = Schedule::kZbH1;
      expect_bit_identical(train(layout, false), whole, layout.name());
    }
}

TEST(Fp8, loading_kernels_changes_no_bit) {
  using enum Schedule;
  const auto B = Dtype::kBF16;
  for (const Layout& layout :
       that_fit({fp8({.pp = 2, .chunks = 2, .schedule = kZbV, .llama = true, .compute_layers = 1}),
                 fp8({.dp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kZbV, .precision = B}),
                 fp8({.tp = 2, .pp = 2, .schedule = kZbH1, .llama = true, .moe = true, .ep = 2, .micro_batch = 2})}))
    expect_loading_changes_no_bit(layout);
}

TEST(Fp8, bounds_find_faulty_gradients_of_a_layer) {
  if (test_device_kind() != DeviceKind::kCpu) GTEST_SKIP() << "faults are those of the CPU's GEMMs";
  expect_faults_are_found(fp8({}));
  expect_faults_are_found(fp8({.precision = Dtype::kBF16, .llama = true}));
}

// The losses are close to those without FP8 but not equal: the casts, including those of gradients, were done.
TEST(Fp8, losses_are_near_those_without_it) {
  if (test_job()->world_rank() != 0) return;
  for (const bool llama : {false, true}) {
    const Layout layout = fp8({.llama = llama});
    Layout plain = layout, more_digits = layout;
    plain.gemms = GemmFormat::kCompute;
    more_digits.fp8_gradients = Dtype::kE4M3;
    const History without = train(plain, true), with = train(layout, true), other = train(more_digits, true);
    double worst = 0;
    for (size_t step = 0; step < without.steps.size(); ++step) {
      const double difference = relative(with.steps[step].loss, without.steps[step].loss);
      worst = std::max(worst, difference);
      EXPECT_GT(difference, 0.0) << "step " << step;
    }
    fmt::print("{}: loss {:.1e} from that without FP8\n", layout.name(), worst);
    // The difference is the rounding of the format, not of the machine's sums: 1.4e-3 and 3.1e-3 whatever kernels
    // OpenBLAS uses.
    EXPECT_LE(worst, 5e-3) << layout.name();
    EXPECT_NE(with.steps.back().loss, other.steps.back().loss);
    EXPECT_LT(with.steps.back().loss, with.steps.front().loss) << "does not learn";
  }
}

// Like keeps_fp8_weights, for a layout with FP8.
bool keeps_fp8(const Layout& layout) { return layout.precision == Dtype::kBF16; }

Layout all_axes() {
  Layout layout = fp8({.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved});
  layout.llama = true;
  layout.recompute = Recompute::kSelective;
  layout.precision = Dtype::kBF16;
  return layout;
}

TEST(Fp8, the_same_layout_twice_is_bit_identical) {
  Layout parallel = fp8({.dp = 1, .tp = 4, .pp = 2, .block = Block::kParallel});
  parallel.recompute = Recompute::kFull;
  for (const Layout& layout : that_fit({all_axes(), parallel}))
    expect_bit_identical(train(layout, false), train(layout, false), layout.name());
}

// Neither weights nor moments nor scales change, whether or not the scales have a history.
TEST(Fp8, a_step_that_is_not_finite_changes_nothing) {
  for (Layout layout : that_fit({all_axes(), fp8({.dp = 2, .zero = 0})})) {
    layout.steps = 6;
    layout.bad_steps = BadSteps::kNotFinite;
    const History skipped = train(layout, false);
    layout.bad_steps = BadSteps::kNeverBegun;
    expect_bit_identical(skipped, train(layout, false), layout.name());
  }
}

TEST(Fp8, late_transfers_change_no_bit) {
  for (Layout layout : that_fit({all_axes(), fp8({.tp = 4, .split = {.num_splits = 2}})})) {
    layout.steps = 6;
    const History in_time = train(layout, false);
    uint64_t transfers = 0;
    const auto rank = static_cast<uint64_t>(test_job()->world_rank());
    OnTransfer delay([&](Stream& stream) {
      const double draw = random_uniform(rank + 1, ++transfers);
      if (draw < 0.2) idle(stream, std::chrono::microseconds(static_cast<int>(draw * 2500)));
    });
    expect_bit_identical(in_time, train(layout, false), layout.name());
  }
}

// The rows that tp gathers inside the layers are bytes: all but one of the compute type's bytes are saved.
TEST(Fp8, gathers_of_layers_move_a_byte_an_element) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  Layout layout = fp8({.tp = 2});
  layout.transfers = Transfers::kCollectives;
  layout.steps = 5;  // the first step also determines scales
  const History with = train(layout, false);
  const Config config = config_of(layout);
  layout.gemms = GemmFormat::kCompute;
  const History without = train(layout, false);
  if (test_job()->world_rank() >= 2) return;
  EXPECT_EQ(with.tp_counts.all_gathers, without.tp_counts.all_gathers);
  // Forward and backward have two gathers per layer, of which a rank receives the other's half.
  const int64_t elements = int64_t{config.data.micro_batch} * config.model.seq_len * config.model.hidden / 2;
  EXPECT_EQ(without.tp_counts.bytes - with.tp_counts.bytes, (static_cast<int64_t>(dtype_bytes(layout.precision)) - 1) *
                                                                elements * 4 * config.model.layers *
                                                                microbatches(config));
}

// dp ranks gather FP8 weights as bytes: half of the size of bf16.
TEST(Fp8, gathers_of_weights_move_a_byte_an_element) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  for (const int zero : {1, 2}) {
    Layout layout = fp8({.dp = 2, .zero = zero, .precision = Dtype::kBF16});
    layout.transfers = Transfers::kCollectives;
    layout.steps = 5;
    const History with = train(layout, false);
    layout.gemms = GemmFormat::kCompute;
    const History without = train(layout, false);
    if (test_job()->world_rank() >= 2) continue;
    const Config config = config_of(layout);
    const int64_t C = config.model.hidden, F = config.model.ffn_hidden;
    const int64_t quantized =
        config.model.layers * (4 * C * C + 2 * C * F);  // a rank receives the other's half of these
    EXPECT_EQ(without.dp_bytes - with.dp_bytes, quantized / 2) << "zero " << zero;
  }
}

// Returns whether the scale changes within `noise` of the numbers that determined it: the largest of the steps before
// `step` in the history, any of which, decayed, may determine it.
bool is_at_a_border(const std::vector<StepResult>& steps, size_t step, size_t i, float scale, double noise) {
  if (step == 0) return false;
  const size_t slots = steps[step].fp8.size() / kNumFp8Operands;
  const bool is_gradient = i / slots == static_cast<size_t>(Fp8Operand::kGradient);
  const double limit = fp8_format(is_gradient ? Dtype::kE5M2 : Dtype::kE4M3).limit / kFp8Headroom;
  double history = 0;
  for (size_t s = 0; s < step; ++s) history = std::max<double>(steps[s].fp8[i].amax, kFp8HistoryDecay * history);
  const double share = history * scale / limit;
  EXPECT_GT(share, 0.5) << i;
  EXPECT_LE(share, 1.0) << i;
  return share * (1 + noise) > 1 || share * (1 - noise) <= 0.5;
}

// Returns how much the largest number of a cast may differ when sums are in another order, as a share: three times what
// a run of ReorderedRuns differs (root mean square over the runs, for the cast that differs most, at the step with the
// largest difference, since few numbers of fp32 round differently in the first steps). Collective: each rank trains
// some of the runs.
double amax_noise(const Layout& layout) {
  constexpr double kSpreads = 3;
  Job& job = *test_job();
  const auto [from, others] = reordered(layout);
  const History expected = train(from, true);
  std::vector<double> squares(expected.steps.size());  // sums over this rank's runs
  for (size_t run = 0; run < others.size(); ++run) {
    if (static_cast<int>(run) % job.world_size() != job.world_rank()) continue;
    const History found = train(others[run], true);
    for (size_t step = 0; step < squares.size(); ++step) {
      double most = 0;
      for (size_t i = 0; i < found.steps[step].fp8.size(); ++i)
        most = std::max(most, relative(found.steps[step].fp8[i].amax, expected.steps[step].fp8[i].amax));
      squares[step] += most * most;
    }
  }
  std::vector<double> sums(squares.size());
  for (const std::vector<double>& of_rank : job.all_gather(squares))
    for (size_t step = 0; step < sums.size(); ++step) sums[step] += of_rank[step];
  return kSpreads * std::sqrt(*std::max_element(sums.begin(), sums.end()) / static_cast<double>(others.size()));
}

// Statistics of casts are equal on all ranks. Shares and largest numbers equal those of one rank, except for rounding.
TEST(Fp8, numbers_of_a_step_are_those_of_one_rank) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  for (Layout layout : that_fit({fp8({.dp = 2, .tp = 2, .pp = 2, .recompute = Recompute::kNone}),
                                 fp8({.dp = 2, .tp = 2, .pp = 2, .zero = 2, .precision = Dtype::kBF16}),
                                 fp8({.dp = 2, .tp = 2, .zero = 0, .precision = Dtype::kBF16})})) {
    SCOPED_TRACE(layout.name());
    layout.steps = 5;
    const double noise = amax_noise(layout);
    const std::vector<StepResult> steps = train(layout, false).steps;
    Layout one = layout;
    one.dp = one.tp = one.pp = 1;
    one.zero = 0;
    const std::vector<StepResult> expected_steps = train(one, true).steps;
    if (test_job()->world_rank() >= layout.ranks()) continue;
    // Each dp rank casts all weights, or its slices.
    const int casts = keeps_fp8(layout) && layout.zero >= 1 ? 1 : layout.dp;
    for (const size_t step : {size_t{0}, steps.size() - 1}) {
      const std::vector<Fp8Numbers>&numbers = steps[step].fp8, &expected = expected_steps[step].fp8;
      double worst = 0;
      for (size_t i = 0; i < numbers.size(); ++i) worst = std::max(worst, relative(numbers[i].amax, expected[i].amax));
      if (test_job()->world_rank() == 0)
        fmt::print("{}, step {}: largest numbers differ by {:.1e}, {:.1e} is allowed\n", layout.name(), step, worst,
                   noise);
      ASSERT_EQ(numbers.size(), expected.size());
      for (size_t i = 0; i < numbers.size(); ++i) {
        const bool is_weight = i / (expected.size() / kNumFp8Operands) == static_cast<size_t>(Fp8Operand::kWeight);
        if (step > 0 || (is_weight && keeps_fp8(layout))) {
          const float scale = expected[i].scale;
          if (numbers[i].scale != scale) {  // a power of two, which rounding changes by at most one step
            EXPECT_TRUE(is_at_a_border(expected_steps, step, i, scale, noise)) << i << ": " << numbers[i].scale;
            EXPECT_TRUE(numbers[i].scale == 2 * scale || numbers[i].scale == scale / 2) << i << ": " << scale;
          }
        }
        EXPECT_NEAR(numbers[i].amax, expected[i].amax, noise * expected[i].amax) << i;
        if (step == 0 && is_weight) {
          EXPECT_EQ(numbers[i].amax, expected[i].amax) << "start values are the same";
        }
        EXPECT_GT(numbers[i].elements, 0.0f);
        EXPECT_EQ(numbers[i].elements, expected[i].elements * static_cast<float>(is_weight ? casts : 1)) << i;
        EXPECT_EQ(numbers[i].saturated, 0.0f) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
