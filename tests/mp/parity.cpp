// The parity matrix: every layout trains like one rank. 20 steps; losses and gradient norms a step, then all
// parameters.
#include <cmath>
#include <cstring>
#include <map>

#include "io/base/random.h"
#include "lib/comm/peer_arenas.h"
#include "lib/comm/transfer_hook.h"
#include "lib/train/row_cuts.h"
#include "lib/train/trainer.h"
#include "tests/mp/mp_test.h"

namespace tri {
namespace {

constexpr int kSteps = 20;

struct Layout {
  int dp = 1, tp = 1, pp = 1, chunks = 1;
  int zero = 1;
  Schedule schedule = Schedule::k1F1B;
  Block block = Block::kSequential;
  Dtype precision = Dtype::kF32;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  bool tied = true;
  bool llama = false;  // RMSNorm, SwiGLU, RoPE, GQA, window, no bias; else the GPT-2 family
  Recompute recompute = Recompute::kNone;
  bool overlap = true;
  PpTransfers pp_transfers = PpTransfers::kCopies;
  int steps = kSteps;
  bool timed_cuts = false;
  RowCut cut{};                    // of all products beside tp transfers, where it is not the standard one
  int64_t bucket_elements = 2000;  // several buckets a chunk
  int micro_batch = 1;             // with tp ranks or more, their rows are whole sequences

  int ranks() const { return dp * tp * pp; }
  std::string name() const {
    return fmt::format("dp{} tp{} pp{} v{} zero{} {} {} {} {}{}{} recompute {}{}", dp, tp, pp, chunks, zero,
                       enum_name(schedule), enum_name(block), enum_name(precision), enum_name(optimizer),
                       tied ? " tied" : "", llama ? " llama" : "", enum_name(recompute), overlap ? "" : " no overlap") +
           (pp_transfers == PpTransfers::kMessages ? " messages" : "") +
           (cut == RowCut{} ? "" : fmt::format(" {} pieces{}", cut.pieces, cut.direct ? ", direct" : "")) +
           (micro_batch == 1 ? "" : fmt::format(" microbatches of {}", micro_batch));
  }
};

Config config_of(const Layout& layout) {
  Config c;
  c.run.seed = 7;
  c.run.steps = layout.steps;
  c.run.gemm_search = false;  // the job's ranks agree on its choices; here some of them stand aside
  c.model.layers = 8;
  c.model.hidden = 32;
  c.model.heads = 4;
  c.model.kv_heads = layout.llama ? 2 : 4;
  c.model.ffn_hidden = 64;
  c.model.vocab = 200;
  c.model.seq_len = 16;
  c.model.init_std = 0.1;
  c.model.block = layout.block;
  c.model.tie_embeddings = layout.tied;
  if (layout.llama) {
    c.model.norm = Norm::kRmsNorm;
    c.model.activation = Activation::kSwiglu;
    c.model.position = Position::kRope;
    c.model.window = 7;
    c.model.bias = false;
  }
  c.data.global_batch = 8;
  c.data.micro_batch = layout.micro_batch;
  c.parallel.tp = layout.tp;
  c.parallel.pp = layout.pp;
  c.parallel.dp = layout.dp;
  c.parallel.chunks = layout.chunks;
  c.parallel.schedule = layout.schedule;
  c.parallel.zero = layout.zero;
  c.parallel.recompute = layout.recompute;
  c.parallel.bucket_elements = layout.bucket_elements;
  c.parallel.tp_transfers = c.parallel.dp_transfers = Transfers::kCopies;
  c.parallel.pp_transfers = layout.pp_transfers;
  c.parallel.overlap_tp = c.parallel.overlap_pp = c.parallel.overlap_dp = layout.overlap;
  c.precision.compute = layout.precision;
  c.optimizer.name = layout.optimizer;
  c.optimizer.clip = 0.5;
  c.optimizer.eps = 1e-6;
  c.lr.peak = 2e-3;
  c.lr.warmup_steps = 5;
  return value_or_throw(resolve_config(c, layout.ranks()));
}

// Microbatch m of dp rank d holds samples (m · dp + d) · b + j of the step.
std::vector<int32_t> tokens_of(const Config& c, int64_t step, int dp_rank, int shift) {
  const int b = c.data.micro_batch, micros = microbatches(c);
  std::vector<int32_t> tokens;
  for (int m = 0; m < micros; ++m)
    for (int j = 0; j < b; ++j)
      for (int t = 0; t < c.model.seq_len; ++t) {
        const int64_t sample = step * c.data.global_batch + (int64_t{m} * c.parallel.dp + dp_rank) * b + j;
        const auto at = static_cast<uint64_t>(sample * 1000 + t + shift);
        tokens.push_back(static_cast<int32_t>(random_uniform(99, at) * random_uniform(98, at) * c.model.vocab));
      }
  return tokens;
}

struct History {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> parameters;  // whole tensors by name
  CommCounts tp_counts;                                  // of the last step
};

std::vector<float> read_floats(Trainer& trainer, Tensor tensor) {
  trainer.runtime().synchronize();
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  trainer.runtime().compute().copy(bytes.data(), tensor.data, tensor.bytes());
  trainer.runtime().compute().synchronize();
  tensor.data = bytes.data();
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = tensor.dtype == Dtype::kF32 ? tensor.as<float>()[i] : static_cast<float>(tensor.as<bf16>()[i]);
  return values;
}

// Puts this rank's part of a tensor into the whole one.
void place(const ParamSpec& spec, Axis tp, const std::vector<float>& part, std::vector<float>& whole) {
  whole.resize(static_cast<size_t>(spec.numel()));
  const int dim = std::max(spec.split_dim, 0);
  const int parts = spec.split_dim < 0 ? 1 : tp.size, index = spec.split_dim < 0 ? 0 : tp.rank;
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= spec.shape[static_cast<size_t>(d)];
  for (size_t d = static_cast<size_t>(dim) + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
  const int64_t split = spec.shape[static_cast<size_t>(dim)], local = split / parts;
  for (int64_t o = 0; o < outer; ++o)
    std::memcpy(whole.data() + (o * split + index * local) * inner, part.data() + o * local * inner,
                static_cast<size_t>(local * inner) * sizeof(float));
}

// Of both ways that rows of activations take.
CommCounts tp_counts(Runtime& runtime) {
  CommCounts counts = runtime.tp().group().counts();
  if (const RowExchange* exchange = runtime.row_exchange()) {
    counts.all_gathers += exchange->counts().all_gathers;
    counts.reduce_scatters += exchange->counts().reduce_scatters;
  }
  return counts;
}

// Runs the layout on world ranks [0, layout.ranks()); the history's parameters are whole on rank 0.
// `alone`: on this rank, without MPI.
History train(const Layout& layout, bool alone) {
  Job& job = *test_job();
  const Config config = config_of(layout);
  History history;
  std::string message;
  if (alone || job.world_rank() < layout.ranks()) {
    const Mesh mesh = make_mesh(alone ? 0 : job.world_rank(), layout.tp, layout.dp, layout.pp);
    auto device = open_test_device();
    Arena measuring;
    allocate_rank(config, mesh, measuring);
    Arena arena(*device, measuring.used());
    Trainer trainer(config, mesh, alone ? nullptr : &job, *device, arena);
    if (layout.cut != RowCut{}) {
      RowCuts cuts;
      cuts.forward.fill(layout.cut);
      cuts.backward.fill(layout.cut);
      trainer.set_row_cuts(cuts);
    }
    if (layout.timed_cuts && !alone) {
      const RowCuts cuts =
          timed_row_cuts(config, mesh, job, *device, trainer.tensors(), trainer.store(), trainer.runtime());
      for (const std::string& theirs : job.all_gather(to_text(cuts))) EXPECT_EQ(theirs, to_text(cuts));
      EXPECT_EQ(value_or_throw(row_cuts_of(to_text(cuts), layout.tp)), cuts);
      trainer.set_row_cuts(cuts);
    }
    trainer.make_start_values();
    for (int64_t step = 0; step < layout.steps; ++step) {
      const CommCounts before = tp_counts(trainer.runtime());
      history.steps.push_back(
          trainer.step(step, tokens_of(config, step, mesh.dp.rank, 0), tokens_of(config, step, mesh.dp.rank, 1)));
      history.tp_counts = tp_counts(trainer.runtime());
      history.tp_counts.all_gathers -= before.all_gathers;
      history.tp_counts.reduce_scatters -= before.reduce_scatters;
    }
    for (const auto& chunk : trainer.store().parameters())
      for (const Parameter& parameter : chunk) {
        const std::vector<float> values = read_floats(trainer, parameter.weight);
        if (alone) {
          place(parameter.spec, mesh.tp, values, history.parameters[parameter.spec.name]);
        } else if (mesh.dp.first()) {
          message += fmt::format("{}\n{} {}\n", parameter.spec.name, mesh.tp.rank, values.size());
          message.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        }
      }
  }
  if (alone) return history;

  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : model_parameters(config)) specs[spec.name] = spec;
  for (const std::string& text : job.gather(message)) {
    for (size_t at = 0; at < text.size();) {
      const size_t end_name = text.find('\n', at), end_numbers = text.find('\n', end_name + 1);
      const std::string name = text.substr(at, end_name - at);
      int tp_rank = 0;
      size_t count = 0;
      std::sscanf(text.c_str() + end_name + 1, "%d %zu", &tp_rank, &count);
      std::vector<float> part(count);
      std::memcpy(part.data(), text.data() + end_numbers + 1, count * sizeof(float));
      place(specs.at(name), {tp_rank, layout.tp}, part, history.parameters[name]);
      at = end_numbers + 1 + count * sizeof(float);
    }
  }
  return history;
}

double relative(double a, double b) { return std::fabs(a - b) / std::fabs(b); }

// The same model on one rank, computed once for each model and optimizer.
const History& reference(const Layout& layout) {
  static std::map<std::string, History> known;
  Layout one = layout;
  one.dp = one.tp = one.pp = one.chunks = 1;
  one.zero = 0;
  one.schedule = Schedule::k1F1B;
  one.recompute = Recompute::kNone;
  one.overlap = true;
  one.cut = {};
  one.micro_batch = 1;
  auto [entry, is_new] = known.try_emplace(one.name());
  if (is_new) entry->second = train(one, true);
  return entry->second;
}

struct Tolerance {
  double loss, grad_norm, parameters;
};
// fp32: rounding of sums in another order; parameters a tensor at a time.
// bf16: activations round at other places, 8 bits of mantissa; parameters all together, because gradients that are zero
// but for rounding (a key's bias moves no softmax) are noise there, and Adam scales noise up to full steps.
Tolerance tolerance_of(const Layout& layout) {
  return layout.precision == Dtype::kF32 ? Tolerance{1e-5, 1e-5, 1e-4} : Tolerance{5e-3, 5e-2, 2e-2};
}

void expect_like_one_rank(const Layout& layout) {
  const Tolerance allowed = tolerance_of(layout);
  const History history = train(layout, false);
  if (test_job()->world_rank() == 0) {
    const History& expected = reference(layout);
    double worst_loss = 0, worst_norm = 0, worst_parameter = 0, all_difference = 0, all_size = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto s = static_cast<size_t>(step);
      worst_loss = std::max(worst_loss, relative(history.steps[s].loss, expected.steps[s].loss));
      worst_norm = std::max(worst_norm, relative(history.steps[s].grad_norm, expected.steps[s].grad_norm));
    }
    ASSERT_EQ(history.parameters.size(), expected.parameters.size());
    for (const auto& [name, values] : expected.parameters) {
      ASSERT_TRUE(history.parameters.count(name)) << name;
      const std::vector<float>& mine = history.parameters.at(name);
      double difference = 0, size = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        difference += (mine[i] - values[i]) * (mine[i] - values[i]);
        size += values[i] * values[i];
      }
      worst_parameter = std::max(worst_parameter, std::sqrt(difference / std::max(size, 1e-12)));
      all_difference += difference;
      all_size += size;
    }
    if (layout.precision != Dtype::kF32) worst_parameter = std::sqrt(all_difference / all_size);
    std::printf("%-100s loss %.1e  norm %.1e  parameters %.1e\n", layout.name().c_str(), worst_loss, worst_norm,
                worst_parameter);
    std::fflush(stdout);
    EXPECT_LE(worst_loss, allowed.loss) << layout.name();
    EXPECT_LE(worst_norm, allowed.grad_norm) << layout.name();
    EXPECT_LE(worst_parameter, allowed.parameters) << layout.name();
    EXPECT_LT(history.steps.back().loss, history.steps.front().loss) << "does not learn";
  }
  test_job()->barrier();
}

std::vector<Layout> matrix() {
  using enum Schedule;
  const auto P = Block::kParallel;
  const auto B = Dtype::kBF16;
  const auto Lamb = OptimizerKind::kLamb;
  const auto norms = Recompute::kNorms, selective = Recompute::kSelective, full = Recompute::kFull;
  std::vector<Layout> rows = {
      // one axis
      {.dp = 2, .zero = 0},
      {.dp = 2, .zero = 1},
      {.dp = 2, .zero = 2},
      {.dp = 8, .zero = 1, .optimizer = Lamb},
      {.tp = 2},
      {.tp = 2, .llama = true},
      {.tp = 2, .llama = true, .micro_batch = 4},
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
      {.dp = 2, .tp = 2, .recompute = norms},
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
  };
  // Every overlap off.
  for (size_t i = 0, n = rows.size(); i < n; ++i)
    if (rows[i].ranks() == 8 && rows[i].precision == Dtype::kF32 && rows[i].pp > 1) {
      rows.push_back(rows[i]);
      rows.back().overlap = false;
    }
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

void expect_bit_identical(const History& a, const History& b, const std::string& what) {
  if (test_job()->world_rank() != 0) return;
  for (size_t step = 0; step < a.steps.size(); ++step) {
    EXPECT_EQ(a.steps[step].loss, b.steps[step].loss) << what << ", step " << step;
    EXPECT_EQ(a.steps[step].grad_norm, b.steps[step].grad_norm) << what << ", step " << step;
  }
  EXPECT_EQ(a.parameters, b.parameters) << what;
}

// Those of `layouts` that the job has ranks for; with fewer than eight, smaller ones stand in.
std::vector<Layout> that_fit(std::vector<Layout> layouts) {
  for (Layout& layout : layouts)
    for (int* axis : {&layout.dp, &layout.tp})
      if (layout.ranks() > test_job()->world_size()) *axis = 1;
  std::erase_if(layouts, [](const Layout& layout) { return layout.ranks() > test_job()->world_size(); });
  return layouts;
}

TEST(Parity, the_same_layout_twice_is_bit_identical) {
  const Layout plain{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true};
  Layout rich{.dp = 2, .tp = 2, .pp = 2, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved};
  rich.precision = Dtype::kBF16;
  rich.optimizer = OptimizerKind::kLamb;
  for (const Layout& layout : that_fit({plain, rich}))
    expect_bit_identical(train(layout, false), train(layout, false), layout.name());
}

// Bit for bit but where tp goes in pieces, since a product of fewer rows may round otherwise, and where more than two
// parts of a gradient are added: a sum of collectives has its own order.
TEST(Parity, overlap_on_equals_off) {
  const Layout plain{.dp = 4, .pp = 2, .zero = 1};
  Layout rich{.dp = 2, .pp = 4, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved};
  rich.block = Block::kParallel;
  rich.llama = true;
  Layout tp{.dp = 2, .tp = 4, .zero = 2};
  for (Layout layout : that_fit({plain, rich, tp})) {
    layout.overlap = true;
    const History on = train(layout, false);
    layout.overlap = false;
    layout.pp_transfers = PpTransfers::kMessages;
    const History off = train(layout, false);
    if (layout.tp == 1 && layout.dp <= 2) expect_bit_identical(on, off, layout.name());
    for (size_t step = 0; step < on.steps.size(); ++step) {
      EXPECT_LE(relative(on.steps[step].loss, off.steps[step].loss), 1e-6) << layout.name() << ", step " << step;
      EXPECT_LE(relative(on.steps[step].grad_norm, off.steps[step].grad_norm), 1e-5) << layout.name();
    }
  }
}

// Products in every number of pieces, and those that write into the peers' memory.
TEST(Parity, every_cut_trains_like_one_rank) {
  const Layout four{.tp = 4, .micro_batch = 4},
      two{.dp = 2, .tp = 2, .llama = true, .recompute = Recompute::kSelective};
  const Layout parallel{.tp = 4, .block = Block::kParallel};
  for (Layout layout : that_fit({four, two, parallel}))
    for (const RowCut cut : {RowCut{.pieces = 1}, RowCut{.pieces = 2}, RowCut{.pieces = 3}, RowCut{.direct = true}}) {
      if (cut.pieces > layout.tp || (cut.direct && layout.block == Block::kParallel)) continue;
      layout.cut = cut;
      expect_like_one_rank(layout);
    }
}

void expect_late_steps_change_no_bit(Layout layout, int steps, double chance_of_delay, double longest_us) {
  layout.steps = steps;
  const History in_time = train(layout, false);
  uint64_t transfers = 0;
  const auto rank = static_cast<uint64_t>(test_job()->world_rank());
  set_transfer_hook([&](Stream& stream) {
    const double draw = random_uniform(rank + 1, ++transfers);
    if (draw < chance_of_delay)
      stream.idle(std::chrono::microseconds(static_cast<int>(draw / chance_of_delay * longest_us)));
  });
  const History late = train(layout, false);
  set_transfer_hook({});
  expect_bit_identical(in_time, late, layout.name());
}

// The first two ranks share a machine: their transfers are copies, the others' collectives and messages.
TEST(Parity, several_machines_train_like_one_rank) {
  Layout ring{.pp = 4, .chunks = 2, .schedule = Schedule::kInterleaved}, wide{.dp = 2, .tp = 2, .pp = 2};
  Layout deep{.tp = 2, .pp = 4, .tied = true};
  const std::string machine = fmt::format("machine {}", std::max(1, test_job()->world_rank()));
  for (const Layout& layout : that_fit({ring, wide, deep})) {
    set_machine_name(machine);
    expect_like_one_rank(layout);
    set_machine_name("");
  }
}

// On the CPU no search runs at the start; its timing does here. It scribbles over the state, which is made anew.
TEST(Parity, timed_cuts_are_the_same_on_all_ranks_and_train_like_one) {
  Layout layout{.dp = 2, .tp = 4};
  if (layout.ranks() > test_job()->world_size()) layout.dp = 1;
  if (layout.ranks() != test_job()->world_size()) GTEST_SKIP() << "needs 4 or 8 ranks";
  layout.timed_cuts = true;
  expect_like_one_rank(layout);
}

// Every transfer of every rank comes late, by a time of its own.
TEST(Parity, delays_change_no_bit) {
  const Layout plain{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .llama = true};
  Layout rich{.dp = 1, .tp = 4, .pp = 2, .chunks = 2, .zero = 2, .schedule = Schedule::kInterleaved};
  rich.recompute = Recompute::kSelective;
  Layout parallel{.dp = 2, .tp = 4, .zero = 2, .block = Block::kParallel, .recompute = Recompute::kFull};
  const Layout direct{.tp = 4, .cut = {.direct = true}}, pieces{.tp = 4, .cut = {.pieces = 2}, .micro_batch = 4};
  for (const Layout& layout : that_fit({plain, rich, parallel, direct, pieces}))
    expect_late_steps_change_no_bit(layout, kSteps, 0.2, 500);
}

// Long: only when asked for (--gtest_also_run_disabled_tests).
TEST(Parity, DISABLED_500_late_steps_tp_dp) {
  const Layout layout{.dp = 2, .tp = 2, .zero = 2, .precision = Dtype::kBF16};
  for (const Layout& fits : that_fit({layout})) expect_late_steps_change_no_bit(fits, 500, 0.01, 200);
}
TEST(Parity, DISABLED_500_late_steps_tp_pp) {
  const Layout layout{.tp = 2, .pp = 2, .chunks = 2, .schedule = Schedule::kInterleaved, .cut = {.direct = true}};
  for (const Layout& fits : that_fit({layout})) expect_late_steps_change_no_bit(fits, 500, 0.01, 200);
}
TEST(Parity, DISABLED_500_late_steps_tp) {
  for (const Layout& fits : that_fit({{.tp = 4, .cut = {.pieces = 3}}}))
    expect_late_steps_change_no_bit(fits, 500, 0.01, 200);
}

// A forward pass of L layers: sequential 2·L gathers and 2·L reduces, parallel 1·L and 1·L. Beside the layers a step
// has, for each microbatch, the embedding's reduce, the head's gather and the loss's gather of statistics.
TEST(Parity, the_parallel_block_needs_one_gather_and_one_reduce_a_pass) {
  if (test_job()->world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const auto counts = [](Block block) { return train({.tp = 2, .block = block, .llama = true}, false).tp_counts; };
  const CommCounts sequential = counts(Block::kSequential), parallel = counts(Block::kParallel);
  if (test_job()->world_rank() >= 2) return;
  const Config config = config_of({.tp = 2});
  const int64_t micros = microbatches(config), layers = config.model.layers;
  // Forward and backward alike: a gather and a reduce at each border between rows and columns.
  const int64_t head_gathers = 2, embedding_gathers = 1, head_reduces = 1, embedding_reduces = 1;
  EXPECT_EQ(sequential.all_gathers, micros * (2 * 2 * layers + head_gathers + embedding_gathers));
  EXPECT_EQ(sequential.reduce_scatters, micros * (2 * 2 * layers + head_reduces + embedding_reduces));
  EXPECT_EQ(parallel.all_gathers, micros * (2 * layers + head_gathers + embedding_gathers));
  EXPECT_EQ(parallel.reduce_scatters, micros * (2 * layers + head_reduces + embedding_reduces));
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
