// The parity matrix: every layout trains like one rank, whatever is split, delayed, or on another machine.
#include <cstdlib>
#include <set>
#include <tuple>

#include "io/base/random.h"
#include "tests/hangs/on_transfer.h"
#include "tests/hangs/stream_task.h"
#include "tests/mp/layout.h"
#include "tests/mp/simulated_machine.h"

namespace tri {
namespace {

std::vector<Layout> matrix() {
  using enum Schedule;
  const auto P = Block::kParallel;
  const auto B = Dtype::kBF16;
  const auto Lamb = OptimizerKind::kLamb;
  const auto Muon = OptimizerKind::kMuon;
  const auto norms = Recompute::kNorms, selective = Recompute::kSelective, full = Recompute::kFull;
  const auto yarn = RopeScaling::kYarn;
  std::vector<Layout> rows = {
      // one axis
      {.dp = 2, .zero = 0},
      {.dp = 2, .zero = 1},
      {.dp = 2, .zero = 2},
      {.dp = 8, .zero = 1, .optimizer = Lamb},
      {.tp = 2},
      {.tp = 2, .llama = true},
      {.tp = 2, .llama = true, .micro_batch = 4},
      {.tp = 4, .llama = true},  // one key/value head per rank
      {.tp = 4, .micro_batch = 2},
      {.tp = 4, .block = P},
      {.pp = 2, .schedule = kGpipe},
      {.pp = 2, .tied = false},
      {.pp = 4, .schedule = k1F1B, .recompute = full},
      {.pp = 2, .chunks = 2, .schedule = kInterleaved},
      {.pp = 2, .chunks = 4, .schedule = kInterleaved, .llama = true},
      {.pp = 4, .chunks = 2, .schedule = kInterleaved, .tied = false},
      // two axes
      {.dp = 2, .tp = 2, .zero = 0, .optimizer = Lamb},
      {.dp = 2, .tp = 2, .zero = 2, .block = P, .llama = true},
      {.dp = 4, .tp = 2, .zero = 2, .optimizer = Lamb, .tied = false},
      {.dp = 2, .pp = 2, .zero = 1, .schedule = kGpipe, .optimizer = Lamb},
      {.dp = 2, .pp = 2, .zero = 2, .tied = true, .llama = true},
      {.dp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kInterleaved, .block = P},
      {.tp = 2, .pp = 2, .recompute = selective},
      {.dp = 2, .tp = 2, .llama = true, .recompute = norms},
      {.dp = 2, .tp = 4, .recompute = full, .micro_batch = 4},
      {.tp = 4, .pp = 2, .block = P, .recompute = norms},
      {.tp = 2, .pp = 4, .block = P, .llama = true, .recompute = full},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kInterleaved, .optimizer = Lamb, .llama = true},
      // three axes
      {.dp = 2, .tp = 2, .pp = 2, .zero = 0},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .optimizer = Lamb, .llama = true},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .schedule = kGpipe, .block = P, .tied = false},
      {.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 1, .schedule = kInterleaved},
      {.dp = 2,
       .tp = 2,
       .pp = 2,
       .chunks = 2,
       .zero = 2,
       .schedule = kInterleaved,
       .optimizer = Lamb,
       .llama = true,
       .recompute = selective},
      // biases of queries, keys and values; scaled RoPE
      {.tp = 4, .llama = true, .qkv_bias = true},
      {.tp = 2, .pp = 2, .block = P, .llama = true, .qkv_bias = true, .rope_scaling = yarn, .recompute = full},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true, .qkv_bias = true, .rope_scaling = yarn},
      {.dp = 2,
       .tp = 2,
       .pp = 2,
       .zero = 2,
       .tied = false,
       .llama = true,
       .rope_scaling = RopeScaling::kLlama3,
       .recompute = selective},
      {.dp = 2, .tp = 2, .zero = 1, .precision = B, .llama = true, .qkv_bias = true, .rope_scaling = yarn},
      // norms of outputs and QK-norm over the full width; two norms in the parallel block
      {.tp = 4, .llama = true, .olmo2 = true},
      {.tp = 2, .llama = true, .olmo2 = true, .recompute = norms, .transfers = Transfers::kCollectives},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kInterleaved, .llama = true, .olmo2 = true, .recompute = full},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .llama = true, .olmo2 = true, .recompute = selective},
      {.dp = 2, .tp = 2, .zero = 1, .precision = B, .llama = true, .olmo2 = true},
      {.tp = 4, .neox = true},
      {.tp = 4, .block = P, .neox = true, .transfers = Transfers::kCollectives},
      {.tp = 2, .pp = 2, .block = P, .neox = true, .recompute = full},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .block = P, .tied = false, .neox = true, .recompute = norms},
      {.dp = 2, .tp = 2, .zero = 2, .block = P, .precision = B, .neox = true, .recompute = selective},
      // Gemma
      {.tp = 4, .llama = true, .gemma = true},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true, .rope_scaling = RopeScaling::kLinear, .gemma = true},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kInterleaved, .llama = true, .gemma = true, .recompute = full},
      {.dp = 2, .tp = 2, .zero = 2, .tied = false, .llama = true, .gemma = true, .recompute = norms},
      {.dp = 2, .tp = 2, .zero = 1, .precision = B, .llama = true, .gemma = true, .recompute = selective},
      // experts
      {.dp = 2, .zero = 0, .llama = true, .moe = true},
      {.dp = 2, .zero = 0, .llama = true, .moe = true, .ep = 2},
      {.dp = 4, .zero = 1, .llama = true, .moe = true, .ep = 2},
      {.dp = 8, .zero = 2, .llama = true, .moe = true, .sigmoid = true, .ep = 4},
      {.tp = 2, .llama = true, .moe = true, .sigmoid = true},
      {.tp = 2, .llama = true, .moe = true, .ep = 2, .recompute = full},
      {.tp = 4,
       .llama = true,
       .moe = true,
       .ep = 2,
       .ep_transfers = Transfers::kCollectives,
       .transfers = Transfers::kCollectives},
      {.dp = 4, .zero = 1, .llama = true, .moe = true, .ep = 4, .ep_transfers = Transfers::kCollectives},
      {.dp = 2, .zero = 1, .llama = true, .moe = true, .ep = 2, .collapsed = true},
      {.dp = 2,
       .zero = 1,
       .llama = true,
       .moe = true,
       .ep = 2,
       .ep_transfers = Transfers::kCollectives,
       .collapsed = true},
      {.pp = 2, .llama = true, .moe = true, .recompute = selective},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kInterleaved, .llama = true, .moe = true, .ep = 2},
      {.dp = 2, .tp = 2, .zero = 1, .llama = true, .moe = true, .sigmoid = true, .ep = 4, .recompute = norms},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .llama = true, .moe = true, .ep = 2, .recompute = selective},
      {.dp = 2, .tp = 2, .zero = 1, .optimizer = Lamb, .llama = true, .moe = true, .ep = 2},
      {.dp = 4, .zero = 1, .optimizer = Muon, .llama = true, .moe = true, .ep = 2},
      {.cp = 2, .llama = true, .moe = true, .ep = 2},
      {.dp = 2, .tp = 2, .cp = 2, .zero = 1, .llama = true, .moe = true, .sigmoid = true, .ep = 4},
      {.dp = 2, .tp = 2, .zero = 0, .optimizer = Muon, .llama = true, .moe = true, .ep = 2},
      // parts of sequences
      {.cp = 2},
      {.cp = 4, .llama = true},
      {.cp = 2, .llama = true, .recompute = selective, .transfers = Transfers::kCollectives, .ranks_per_node = 1},
      {.cp = 4, .llama = true, .gemma = true, .micro_batch = 2},
      {.dp = 2, .cp = 2, .zero = 2, .llama = true, .recompute = full},
      {.tp = 2, .cp = 2, .llama = true, .olmo2 = true, .micro_batch = 2},
      {.tp = 2, .cp = 2, .block = P, .neox = true, .recompute = norms},
      {.cp = 2, .pp = 2, .chunks = 2, .schedule = kInterleaved, .tied = true, .llama = true, .recompute = selective},
      {.dp = 2, .cp = 2, .zero = 1, .optimizer = Lamb, .tied = false},
      {.dp = 2, .tp = 2, .cp = 2, .zero = 0, .optimizer = Muon, .llama = true},
      {.dp = 1, .tp = 2, .cp = 2, .pp = 2, .zero = 1, .optimizer = Muon, .micro_batch = 2},
      {.dp = 2, .cp = 2, .pp = 2, .zero = 2, .block = P, .llama = true, .qkv_bias = true, .rope_scaling = yarn},
      {.tp = 2, .cp = 2, .zero = 1, .precision = B, .llama = true},
      {.tp = 2, .cp = 2, .pp = 2, .llama = true, .recompute = full, .documents = true},
      {.dp = 2, .cp = 2, .zero = 1, .masked = true, .documents = true},
      {.dp = 2, .tp = 2, .cp = 2, .zero = 1, .llama = true, .moe = true, .ep = 4},
      // mixed precision
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .precision = B},
      {.dp = 2,
       .tp = 2,
       .pp = 2,
       .chunks = 2,
       .zero = 2,
       .schedule = kInterleaved,
       .block = P,
       .precision = B,
       .llama = true},
      {.dp = 4, .tp = 2, .zero = 1, .precision = B, .optimizer = Lamb},
      // moments in bf16
      {.dp = 2, .zero = 1, .moments = B, .steps = kStepsOfRareRounding},
      {.tp = 2, .moments = B, .llama = true, .steps = kStepsOfRareRounding},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .moments = B, .steps = kStepsOfRareRounding},
      {.dp = 4, .tp = 2, .zero = 1, .optimizer = Lamb, .moments = B, .steps = kStepsOfRareRounding},
      // whole matrices, whose parts lie on several ranks
      {.dp = 2, .zero = 0, .optimizer = Muon},
      {.dp = 8, .zero = 1, .optimizer = Muon, .llama = true},
      {.tp = 2, .optimizer = Muon},
      {.tp = 4, .optimizer = Muon, .llama = true},
      {.pp = 2, .chunks = 2, .schedule = kInterleaved, .optimizer = Muon, .llama = true},
      {.dp = 2, .tp = 2, .zero = 0, .optimizer = Muon, .llama = true},
      {.dp = 2, .tp = 4, .zero = 2, .optimizer = Muon, .tied = false},
      {.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 1, .schedule = kInterleaved, .optimizer = Muon, .llama = true},
      {.dp = 2, .tp = 2, .zero = 1, .precision = B, .optimizer = Muon, .llama = true},
      {.dp = 2, .tp = 2, .zero = 1, .optimizer = Muon, .moments = B, .steps = kStepsOfRareRounding},
      // documents
      {.tp = 2, .documents = true},
      {.dp = 2, .zero = 1, .micro_batch = 2, .documents = true},
      {.tp = 2, .pp = 2, .llama = true, .recompute = full, .micro_batch = 2, .documents = true},
      {.tp = 2, .pp = 4, .tied = false, .documents = true},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true, .recompute = selective, .documents = true},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .llama = true, .gemma = true, .recompute = norms, .documents = true},
      {.dp = 2, .tp = 2, .zero = 1, .llama = true, .olmo2 = true, .documents = true},
      {.dp = 2, .tp = 2, .zero = 1, .precision = B, .llama = true, .documents = true},
      // weight gradients that are computed later
      {.pp = 2, .schedule = kZbH1},
      {.pp = 4, .schedule = kZbH1, .tied = false, .llama = true, .recompute = full},
      {.dp = 2, .pp = 2, .zero = 2, .schedule = kZbH1, .llama = true},
      {.dp = 2, .pp = 2, .zero = 2, .schedule = kZbH1, .tied = false, .llama = true, .bucket_elements = 1 << 20},
      {.dp = 2, .pp = 2, .zero = 2, .schedule = kZbH1, .llama = true, .moe = true, .ep = 2, .bucket_elements = 1 << 20},
      {.tp = 2, .pp = 2, .schedule = kZbH1, .block = P, .recompute = selective},
      {.tp = 2, .pp = 2, .schedule = kZbH1, .optimizer = Muon, .llama = true, .recompute = norms},
      {.tp = 2, .pp = 2, .schedule = kZbH1, .block = P, .neox = true, .recompute = full},
      {.pp = 2, .schedule = kZbH1, .llama = true, .olmo2 = true, .documents = true},
      {.cp = 2, .pp = 2, .schedule = kZbH1, .llama = true, .masked = true},
      {.pp = 2, .schedule = kZbH1, .llama = true, .moe = true, .recompute = selective},
      {.tp = 2, .pp = 2, .schedule = kZbH1, .llama = true, .moe = true, .ep = 2, .recompute = full},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .schedule = kZbH1, .llama = true, .moe = true, .ep = 2},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .schedule = kZbH1, .llama = true, .gemma = true, .recompute = norms},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .schedule = kZbH1, .precision = B, .llama = true, .layers = "3,5"},
      // stages in the shape of a V: one rank has both ends of a tied embedding
      {.pp = 2, .chunks = 2, .schedule = kZbV},
      {.pp = 2, .chunks = 2, .schedule = kZbV, .llama = true, .pp_transfers = PpTransfers::kMessages},
      {.pp = 4, .chunks = 2, .schedule = kZbV, .tied = false, .llama = true, .recompute = full},
      {.dp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kZbV, .tied = true, .llama = true},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kZbV, .block = P, .recompute = selective},
      {.tp = 2, .pp = 4, .chunks = 2, .schedule = kZbV, .llama = true},
      {.dp = 2, .pp = 4, .chunks = 2, .zero = 1, .schedule = kZbV, .recompute = norms},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kZbV, .optimizer = Muon, .tied = true, .llama = true},
      {.pp = 2, .chunks = 2, .schedule = kZbV, .llama = true, .olmo2 = true, .documents = true},
      {.cp = 2, .pp = 2, .chunks = 2, .schedule = kZbV, .llama = true, .masked = true},
      {.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kZbV, .llama = true, .moe = true, .ep = 2},
      {.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kZbV, .precision = B, .layers = "1,3,2,2"},
      {.pp = 3, .chunks = 2, .schedule = kZbV, .layers = "auto"},
      // uneven stages
      {.pp = 3, .layers = "3,3,2"},
      {.pp = 4, .llama = true, .layers = "auto"},
      {.pp = 2, .chunks = 2, .schedule = kInterleaved, .llama = true, .moe = true, .layers = "1,3,2,2"},
      {.dp = 2, .pp = 2, .zero = 2, .optimizer = Muon, .tied = false, .layers = "5,3"},
      // a mean over the targets of all ranks, whose numbers differ
      {.dp = 2, .zero = 1, .masked = true},
      {.dp = 8, .zero = 1, .masked = true},
      {.dp = 2, .zero = 2, .micro_batch = 2, .masked = true},
      {.tp = 2, .pp = 2, .chunks = 2, .schedule = kInterleaved, .llama = true, .masked = true},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true, .masked = true},
      {.dp = 2, .pp = 2, .zero = 1, .precision = B, .optimizer = Lamb, .masked = true},
  };
  // Turns every overlap off: in one row of each schedule, level of ZeRO and set of axes; with TRIREME_ALL_CASES in all.
  std::set<std::tuple<Schedule, int, bool, bool, bool, bool>> without;
  for (size_t i = 0, n = rows.size(); i < n; ++i) {
    const Layout& l = rows[i];
    if (l.ranks() != 8 || l.precision != Dtype::kF32 || l.moments != Dtype::kF32 || l.pp == 1) continue;
    const bool is_new = without.emplace(l.schedule, l.zero, l.dp > 1, l.tp > 1, l.cp > 1, l.ep > 1).second;
    if (!is_new && std::getenv("TRIREME_ALL_CASES") == nullptr) continue;
    rows.push_back(l);
    rows.back().overlap = false;
  }
  for (Layout& layout : rows) layout = on_test_device(layout);
  return rows;
}

TEST(Parity, every_layout_trains_like_one_rank) {
  const std::vector<Layout> rows = matrix();
  EXPECT_GE(rows.size(), 24u);
  for (const Layout& layout : rows) {
    if (layout.ranks() > test_job()->world_size()) continue;
    expect_like_one_rank(layout);
  }
}

// Half of the microbatches' gradients of one layer are missing, as without a reduction, or are added twice.
TEST(Parity, bounds_find_faulty_gradients_of_a_layer) {
  if (test_device_kind() != DeviceKind::kCpu) GTEST_SKIP() << "faults are those of the CPU's GEMMs";
  expect_faults_are_found({});
  expect_faults_are_found({.llama = true, .qkv_bias = true, .rope_scaling = RopeScaling::kYarn});
  expect_faults_are_found({.precision = Dtype::kBF16});
  expect_faults_are_found({.precision = Dtype::kBF16, .optimizer = OptimizerKind::kLamb});
  expect_faults_are_found({.block = Block::kParallel, .precision = Dtype::kBF16, .llama = true});
  expect_faults_are_found({.moments = Dtype::kBF16, .steps = kStepsOfRareRounding});
}

TEST(Parity, the_same_layout_twice_is_bit_identical) {
  const Layout plain{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true};
  Layout rich{.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved};
  rich.precision = Dtype::kBF16;
  rich.optimizer = OptimizerKind::kLamb;
  const Layout rounded{.dp = 2, .zero = 1, .precision = Dtype::kBF16, .moments = Dtype::kBF16};
  Layout whole = plain;
  whole.optimizer = OptimizerKind::kMuon;
  const Layout parts{.tp = 2, .cp = 4, .zero = 1, .precision = Dtype::kBF16, .llama = true};
  for (const Layout& layout : that_fit({plain, rich, rounded, whole, parts}))
    expect_bit_identical(train(layout, false), train(layout, false), layout.name());
}

// A microbatch's weight gradients are added in the same order, only later. Zero 2 reduces buckets of the head and the
// embedding at other times.
TEST(Parity, a_split_backward_pass_has_the_bits_of_a_whole_one) {
  const auto B = Dtype::kBF16;
  for (Layout layout : that_fit({{.pp = 2},
                                 {.pp = 4, .tied = false, .recompute = Recompute::kFull},
                                 {.tp = 2, .pp = 2, .zero = 1, .precision = B, .llama = true},
                                 {.dp = 2, .pp = 2, .zero = 1, .llama = true, .recompute = Recompute::kNorms},
                                 {.tp = 2, .pp = 2, .llama = true, .moe = true, .ep = 2}})) {
    const History whole = train(layout, false);
    layout.schedule = Schedule::kZbH1;
    expect_bit_identical(train(layout, false), whole, layout.name());
  }
}

TEST(Parity, loading_kernels_changes_no_bit) {
  using enum Schedule;
  const auto B = Dtype::kBF16;
  const auto Muon = OptimizerKind::kMuon;
  const auto full = Recompute::kFull;
  for (const Layout& layout :
       that_fit({{.pp = 2},
                 {.pp = 2, .chunks = 2, .schedule = kZbV, .tied = true},
                 {.dp = 2, .pp = 2, .chunks = 2, .zero = 1, .schedule = kZbV, .llama = true, .moe = true, .ep = 2},
                 {.dp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kZbV, .precision = B, .recompute = full},
                 {.tp = 2, .pp = 2, .chunks = 2, .schedule = kZbV, .optimizer = Muon, .llama = true, .documents = true},
                 {.cp = 2, .pp = 2, .chunks = 2, .zero = 0, .schedule = kZbV, .llama = true, .masked = true},
                 {.tp = 2, .pp = 2, .schedule = kZbH1, .llama = true, .moe = true, .sigmoid = true, .ep = 2},
                 {.dp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kInterleaved, .tied = false}}))
    expect_loading_changes_no_bit(layout);
  Layout messages{.dp = 2, .pp = 2, .chunks = 2, .schedule = kZbV, .llama = true, .moe = true, .ep = 2};
  messages.ep_transfers = Transfers::kCollectives;
  for (const Layout& layout : that_fit({messages})) expect_loading_changes_no_bit(layout);
}

TEST(Parity, a_folded_pipeline_has_the_losses_and_norms_of_1f1b) {
  for (Layout layout : that_fit({{.pp = 2},
                                 {.pp = 2, .tied = false, .llama = true},
                                 {.pp = 4, .recompute = Recompute::kFull},
                                 {.tp = 2, .pp = 2, .zero = 1, .llama = true},
                                 {.dp = 2, .pp = 4, .zero = 2, .tied = true},
                                 {.tp = 2, .pp = 4}})) {
    const History line = train(layout, false);
    layout.schedule = Schedule::kZbV;
    layout.chunks = 2;
    const History folded = train(layout, false);
    ASSERT_EQ(folded.steps.size(), line.steps.size());
    for (size_t step = 0; step < line.steps.size(); ++step) {
      EXPECT_LE(relative(folded.steps[step].loss, line.steps[step].loss), 1e-6) << layout.name() << ", step " << step;
      EXPECT_LE(relative(folded.steps[step].grad_norm, line.steps[step].grad_norm), 1e-6) << layout.name();
    }
  }
}

TEST(Parity, rows_of_experts_are_the_same_by_copies_and_by_messages) {
  Layout plain{.dp = 2, .llama = true, .moe = true, .ep = 2}, both = plain, sharded = plain;
  both.tp = 2;
  both.recompute = Recompute::kFull;
  sharded.dp = 4;
  sharded.zero = 2;
  sharded.precision = Dtype::kBF16;
  sharded.sigmoid = true;
  for (Layout layout : that_fit({plain, both, sharded})) {
    layout.ep = layout.ranks();
    const History copies = train(layout, false);
    layout.ep_transfers = Transfers::kCollectives;
    expect_bit_identical(copies, train(layout, false), layout.name());
  }
}

// Neither weights nor moments change on any rank, also if the step is repeated to locate the fault.
TEST(Parity, a_step_that_is_not_finite_changes_nothing_on_any_layout) {
  using enum Schedule;
  const auto B = Dtype::kBF16;
  const auto Lamb = OptimizerKind::kLamb;
  const auto Muon = OptimizerKind::kMuon;
  for (Layout layout : that_fit({{.dp = 2, .zero = 0},
                                 {.dp = 2, .tp = 2, .zero = 1, .optimizer = Muon},
                                 {.dp = 8, .zero = 1},
                                 {.dp = 2, .tp = 2, .zero = 2, .precision = B, .optimizer = Lamb},
                                 {.tp = 4, .transfers = Transfers::kCollectives},
                                 {.pp = 4, .chunks = 2, .schedule = kInterleaved, .tied = false},
                                 {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .precision = B},
                                 {.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kInterleaved},
                                 {.dp = 2, .pp = 2, .zero = 2, .schedule = kZbH1},
                                 {.dp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = kZbV, .tied = true}})) {
    layout.steps = 6;
    layout.bad_steps = BadSteps::kNotFinite;
    const History skipped = train(layout, false);
    layout.bad_steps = BadSteps::kNeverBegun;
    const History without = train(layout, false);
    EXPECT_EQ(skipped.steps.size(), test_job()->world_rank() < layout.ranks() ? 4u : 0u);
    expect_bit_identical(skipped, without, layout.name());
  }
}

// Bit for bit, except if tp uses overlap splits, since a GEMM of fewer rows may round differently, and if more than two
// parts of a gradient are added: a sum of collectives has its own order.
TEST(Parity, overlap_on_equals_off) {
  const Layout plain{.dp = 4, .pp = 2, .zero = 1};
  Layout rich{.dp = 2, .pp = 4, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved};
  rich.block = Block::kParallel;
  rich.llama = true;
  Layout tp{.dp = 2, .tp = 4, .zero = 2};
  const Layout parts{.cp = 2, .pp = 2, .zero = 2, .llama = true, .micro_batch = 2};
  const Layout groups{
      .cp = 2, .zero = 1, .llama = true, .transfers = Transfers::kCollectives, .ranks_per_node = 1};  // of heads
  for (Layout layout : that_fit({plain, rich, tp, parts, groups})) {
    layout.overlap = true;
    const History on = train(layout, false);
    layout.overlap = false;
    layout.pp_transfers = PpTransfers::kMessages;
    const History off = train(layout, false);
    if (layout.tp == 1 && layout.dp * layout.cp <= 2) expect_bit_identical(on, off, layout.name());
    for (size_t step = 0; step < on.steps.size(); ++step) {
      EXPECT_LE(relative(on.steps[step].loss, off.steps[step].loss), 1e-6) << layout.name() << ", step " << step;
      EXPECT_LE(relative(on.steps[step].grad_norm, off.steps[step].grad_norm), 1e-5) << layout.name();
    }
  }
}

// Tests GEMMs in every overlap split, and those that write to the peers' memory.
TEST(Parity, every_overlap_split_trains_like_one_rank) {
  const Layout four{.tp = 4, .micro_batch = 4},
      two{.dp = 2, .tp = 2, .llama = true, .recompute = Recompute::kSelective};
  const Layout parallel{.tp = 4, .block = Block::kParallel};
  for (Layout layout : that_fit({four, two, parallel}))
    for (const OverlapSplit split : {OverlapSplit{.num_splits = 1}, OverlapSplit{.num_splits = 2},
                                     OverlapSplit{.num_splits = 3}, OverlapSplit{.direct = true}}) {
      if (split.num_splits > layout.tp || (split.direct && layout.block == Block::kParallel)) continue;
      layout.split = split;
      expect_like_one_rank(layout);
    }
}

void expect_late_steps_change_no_bit(Layout layout, int steps, double chance_of_delay, double longest_us) {
  layout.steps = steps;
  const History in_time = train(layout, false);
  uint64_t transfers = 0;
  const auto rank = static_cast<uint64_t>(test_job()->world_rank());
  OnTransfer delay([&](Stream& stream) {
    const double draw = random_uniform(rank + 1, ++transfers);
    if (draw < chance_of_delay)
      idle(stream, std::chrono::microseconds(static_cast<int>(draw / chance_of_delay * longest_us)));
  });
  const History late = train(layout, false);
  EXPECT_EQ(transfers > 0, test_job()->world_rank() < layout.ranks());
  expect_bit_identical(in_time, late, layout.name());
}

// The first two ranks share a machine: their stages copy, the others send messages; tp and dp use collectives, because
// some of their groups span several machines.
TEST(Parity, several_machines_train_like_one_rank) {
  Layout ring{.pp = 4, .chunks = 2, .schedule = Schedule::kInterleaved}, wide{.dp = 2, .tp = 2, .pp = 2};
  Layout deep{.tp = 2, .pp = 4, .tied = true};
  const std::string machine = fmt::format("machine {}", std::max(1, test_job()->world_rank()));
  for (Layout layout : that_fit({ring, wide, deep})) {
    layout.transfers = Transfers::kAuto;
    layout.pp_transfers = PpTransfers::kAuto;
    layout.machines_count = true;
    const SimulatedMachine simulated(machine);
    expect_like_one_rank(layout);
  }
}

// The memory has been laid out by then: only a restart with another value helps.
TEST(Parity, copies_that_are_planned_and_cannot_be_are_an_error) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const int rank = test_job()->world_rank();
  const std::pair<Layout, std::string> table[] = {{{.tp = 2}, "parallel.tp_transfers: copies: "},
                                                  {{.dp = 2}, "parallel.dp_transfers: copies: "},
                                                  {{.pp = 2}, "parallel.pp_transfers: copies: "}};
  for (const auto& [layout, words] : table) {
    if (rank < layout.ranks()) {
      const SimulatedMachine simulated(fmt::format("machine {}", rank));
      try {
        train(layout, false);
        ADD_FAILURE() << layout.name() << " starts";
      } catch (const Fatal& problem) {
        EXPECT_EQ(problem.code(), ExitCode::kUsage);
        EXPECT_EQ(problem.what(), words + "the group's ranks are on several machines; set " +
                                      (layout.pp > 1 ? "messages" : "collectives"));
      }
    }
    test_job()->barrier();
  }
}

// Rows are never dropped: more than a rank has memory for end the run with an error that says where and what to do.
TEST(Parity, more_rows_than_experts_have_memory_for_are_an_error) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  for (const Transfers transfers : {Transfers::kCopies, Transfers::kCollectives}) {
    // With copies all ranks of the job agree on the error, with messages those that send rows to each other.
    const int dp = transfers == Transfers::kCopies ? test_job()->world_size() : 2;
    const Layout layout{.dp = dp, .llama = true, .moe = true, .ep = 2, .ep_capacity = 1, .ep_transfers = transfers};
    if (test_job()->world_rank() >= layout.ranks()) continue;
    try {
      train(layout, false);
      ADD_FAILURE() << "rows were balanced in every layer and step";
    } catch (const Fatal& problem) {
      EXPECT_EQ(problem.code(), ExitCode::kUsage);
      const std::string text = problem.what();
      for (const char* part : {"layer ", " rows of a microbatch chose experts ",
                               "parallel.ep_capacity 1 has memory for "
                               "32; set parallel.ep_capacity to 1."})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  test_job()->barrier();
}

// On the CPU no autotuning runs at the start, but its timing runs here. It overwrites the state, which is recreated.
TEST(Parity, timed_splits_are_the_same_on_all_ranks_and_train_like_one) {
  Layout layout{.dp = 2, .tp = 4};
  if (layout.ranks() > test_job()->world_size()) layout.dp = 1;
  if (layout.ranks() != test_job()->world_size()) GTEST_SKIP() << "needs 4 or 8 ranks";
  layout.timed_splits = true;
  expect_like_one_rank(layout);
}

// Every transfer of every rank is delayed by an individual time.
TEST(Parity, delays_change_no_bit) {
  const Layout plain{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true};
  Layout rich{.dp = 1, .tp = 4, .pp = 2, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved};
  rich.recompute = Recompute::kSelective;
  Layout parallel{.dp = 2, .tp = 4, .zero = 2, .block = Block::kParallel, .recompute = Recompute::kFull};
  const Layout direct{.tp = 4, .split = {.direct = true}}, split{.tp = 4, .split = {.num_splits = 2}, .micro_batch = 4};
  const Layout whole{.dp = 2, .tp = 2, .zero = 1, .optimizer = OptimizerKind::kMuon, .llama = true};
  const Layout parts{.dp = 2, .tp = 2, .cp = 2, .zero = 1, .llama = true, .recompute = Recompute::kSelective};
  for (const Layout& layout : that_fit({plain, rich, parallel, direct, split, whole, parts}))
    expect_late_steps_change_no_bit(layout, kSteps, 0.2, 500);
}

// Takes long: runs only on request (--gtest_also_run_disabled_tests).
TEST(Parity, DISABLED_500_late_steps_tp_dp) {
  const Layout layout{.dp = 2, .tp = 2, .zero = 2, .precision = Dtype::kBF16};
  for (const Layout& fits : that_fit({layout})) expect_late_steps_change_no_bit(fits, 500, 0.01, 200);
}
TEST(Parity, DISABLED_500_late_steps_tp_pp) {
  const Layout layout{.tp = 2, .pp = 2, .chunks = 2, .schedule = Schedule::kInterleaved, .split = {.direct = true}};
  for (const Layout& fits : that_fit({layout})) expect_late_steps_change_no_bit(fits, 500, 0.01, 200);
}
TEST(Parity, DISABLED_500_late_steps_tp) {
  for (const Layout& fits : that_fit({{.tp = 4, .split = {.num_splits = 3}}}))
    expect_late_steps_change_no_bit(fits, 500, 0.01, 200);
}

// A forward pass of L layers has 2·L gathers and 2·L reduces (sequential), or L and L (parallel). In addition, a step
// has for each microbatch the embedding's reduce, the head's gather and the loss's gather of statistics.
TEST(Parity, the_parallel_block_needs_one_gather_and_one_reduce_a_pass) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const auto counts = [](Block block) {
    const History history = train({.tp = 2, .block = block, .llama = true}, false);
    EXPECT_EQ(history.tp_collectives, 0) << "all rows go by copies, the loss's statistics too";
    return history.tp_counts;
  };
  const CommCounts sequential = counts(Block::kSequential), parallel = counts(Block::kParallel);
  if (test_job()->world_rank() >= 2) return;
  const Config config = config_of({.tp = 2});
  const int64_t num_microbatches = microbatches(config), layers = config.model.layers;
  // Forward and backward are alike: a gather and a reduce at each border between rows and columns.
  const int64_t head_gathers = 2, embedding_gathers = 1, head_reduces = 1, embedding_reduces = 1;
  EXPECT_EQ(sequential.all_gathers, num_microbatches * (2 * 2 * layers + head_gathers + embedding_gathers));
  EXPECT_EQ(sequential.reduce_scatters, num_microbatches * (2 * 2 * layers + head_reduces + embedding_reduces));
  EXPECT_EQ(parallel.all_gathers, num_microbatches * (2 * layers + head_gathers + embedding_gathers));
  EXPECT_EQ(parallel.reduce_scatters, num_microbatches * (2 * layers + head_reduces + embedding_reduces));
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
