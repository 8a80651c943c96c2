// Trains a tiny model on any layout of the job's ranks, for comparison in the tests of parallel training.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/train/trainer.h"
#include "lib/tune/overlap_splits.h"
#include "tests/mp/mp_test.h"
#include "tests/mp/split_sums.h"

namespace tri {

inline constexpr int kSteps = 10;
// If few numbers round differently, deviations become visible only after some steps.
inline constexpr int kStepsOfRareRounding = 20;

// What happens to steps 0 and 3 of a training.
enum class BadSteps {
  kNone,        // nothing special
  kNotFinite,   // their numbers are not finite: in step 0 those of one rank's weights, in step 3 the norm's
  kNeverBegun,  // they are skipped
};

struct Layout {
  int dp = 1, tp = 1, cp = 1, pp = 1, chunks = 1;
  int zero = 1;
  Schedule schedule = Schedule::k1F1B;
  Block block = Block::kSequential;
  Dtype precision = Dtype::kF32;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Dtype moments = Dtype::kF32;
  bool tied = true;
  bool llama = false;     // RMSNorm, SwiGLU, RoPE, GQA, QK-norm, window, no bias; else the GPT-2 family
  bool qkv_bias = false;  // of llama: biases of queries, keys and values in place of QK-norm
  RopeScaling rope_scaling = RopeScaling::kNone;  // of llama
  bool olmo2 = false;                             // of llama: norms of outputs, and QK-norm over the full width
  bool neox = false;     // of the GPT-2 family: RoPE of half a head, erf form of GeLU; two norms in the parallel block
  bool gemma = false;    // of llama, sequential: four norms a layer, GeGLU, softcaps, layers without a window
  bool moe = false;      // of llama, sequential: experts in all layers but two, a shared one, and the routers' losses
  bool sigmoid = false;  // of moe: DeepSeek-V3's router, with groups and biases
  int ep = 1;            // of moe
  double ep_capacity = 8;                       // of moe: no imbalance exceeds it
  Transfers ep_transfers = Transfers::kCopies;  // of moe
  bool collapsed = false;                       // of moe: all tokens are equal, and choose the same experts
  Recompute recompute = Recompute::kNone;
  bool overlap = true;
  Transfers transfers = Transfers::kCopies;  // of tp and dp
  PpTransfers pp_transfers = PpTransfers::kCopies;
  bool machines_count = false;  // planned for the machines of the ranks; else as if all ranks were on one
  int steps = kSteps;
  bool timed_splits = false;
  OverlapSplit split{};            // of all GEMMs alongside tp transfers, if not the standard one
  int64_t bucket_elements = 2000;  // several buckets per chunk
  int micro_batch = 1;             // sequences
  BadSteps bad_steps = BadSteps::kNone;
  bool loads_kernels = false;  // before the first step, even if the device does not need it
  bool masked = false;         // targets of samples are masked, of some none, of others all
  bool documents = false;      // samples of several documents (data.document_mask)
  bool wide = false;           // four layers, twice as wide: sizes that FP8 supports
  GemmFormat gemms = GemmFormat::kCompute;
  int compute_layers = 0;  // at either end of the model, in addition to fp8
  Dtype fp8_gradients = Dtype::kE5M2;
  DeviceKind device = test_device_kind();
  int sum_parts = 1;                   // GemmSums, of a single rank on the CPU
  GemmFault fault = GemmFault::kNone;  // ... in the gradients of layer 1's matrices
  int first_sample = 0;                // the step's sample used first: the others follow
  int seq_len = 16;
  int ranks_per_node = 8;       // of the plan
  std::string layers = "even";  // parallel.layers_per_chunk

  int ranks() const { return dp * tp * cp * pp; }
  std::string name() const {
    return fmt::format("dp{} tp{} pp{} v{} zero{} {} {} {} {}{}{} recompute {}{}", dp, tp, pp, chunks, zero,
                       enum_name(schedule), enum_name(block), enum_name(precision), enum_name(optimizer),
                       tied ? " tied" : "", llama ? " llama" : "", enum_name(recompute), overlap ? "" : " no overlap") +
           (cp == 1 ? "" : fmt::format(" cp{}", cp)) + (pp_transfers == PpTransfers::kMessages ? " messages" : "") +
           (split == OverlapSplit{} ? ""
                                    : fmt::format(" {} splits{}", split.num_splits, split.direct ? ", direct" : "")) +
           (moments == Dtype::kF32 ? "" : " bf16 moments") + (qkv_bias ? " qkv_bias" : "") + (olmo2 ? " olmo2" : "") +
           (neox ? " neox" : "") + (gemma ? " gemma" : "") + (moe ? fmt::format(" moe ep{}", ep) : "") +
           (sigmoid ? " sigmoid" : "") + (collapsed ? " collapsed" : "") +
           (rope_scaling == RopeScaling::kNone ? "" : fmt::format(" {}", enum_name(rope_scaling))) +
           (masked ? " masked targets" : "") + (documents ? " documents" : "") +
           (layers == "even" ? "" : fmt::format(" layers {}", layers)) +
           (micro_batch == 1 ? "" : fmt::format(" microbatches of {}", micro_batch)) +
           (seq_len == 16 ? "" : fmt::format(" T {}", seq_len)) +
           (ranks_per_node == 8 ? "" : fmt::format(" nodes of {}", ranks_per_node)) +
           (steps == kSteps ? "" : fmt::format(" {} steps", steps)) + (wide ? " wide" : "") +
           (gemms == GemmFormat::kCompute
                ? ""
                : fmt::format(" fp8 but {} layers, {}", 2 * compute_layers, enum_name(fp8_gradients)));
  }
};

Config config_of(const Layout& layout);

struct History {
  std::vector<StepResult> steps;                         // without the bad ones
  std::map<std::string, std::vector<float>> parameters;  // full tensors by name
  CommCounts tp_counts;                                  // of the last step
  int64_t dp_bytes = 0;                                  // ... of the dp axis
  int64_t tp_collectives = 0;                            // ... of its gathers and reduces, those by MPI or NCCL
};

// Runs the layout on world ranks [0, layout.ranks()); the history's parameters are full on rank 0.
// `alone`: on this rank, without MPI.
History train(const Layout& layout, bool alone);

double relative(double a, double b);

// How far a training is from another one of the same model, as relative deviations.
struct Deviation {
  std::vector<double> loss, grad_norm;       // by step
  std::map<std::string, double> parameters;  // of a tensor's norm, by name
};
Deviation deviation(const Layout& layout, const History& history, const History& from);

// Compares all steps with one rank: losses and gradient norms of each step, then all parameters. Collective.
//
// For fp32 the bounds are those of sums in another order. If numbers are rounded to less than fp32, a number near a
// rounding border may fall on either side of it, and training amplifies that by a factor which depends on the model,
// the step and the processor's kernels. These bounds are therefore measured on the machine that runs the test, by the
// spread of one-rank runs that differ from the reference only in rounding: sums of GEMMs in several parts, rounded like
// tensor parallelism (split_sums.h), samples in another order, other microbatches.
//
// Without RoPE the biases of keys have no effect, and their gradients are rounding errors, from which Adam makes steps
// as large as any others. In fp32 these errors are below optimizer.eps, and such biases are compared like everything
// else: the test of the bounds detects a gradient of keys that is that of values. If numbers are rounded to less, two
// correct runs differ there by the size of these biases, so they are excluded from their tensor.
void expect_like_one_rank(const Layout& layout);
// Checks that a training with faulty gradients of one layer (GemmFault) exceeds the bounds of `layout`. Uses the CPU.
// Collective.
void expect_faults_are_found(const Layout& layout);
// Describes what of `found` is beyond the bounds of `layout`; "" if nothing is. On rank 0. Collective.
std::string beyond_bounds(const Layout& layout, const Deviation& found);
// One-rank runs of the layout's model that differ only in rounding: how far `others` are from `from` is what sums in
// another order change on this machine. On the CPU, whatever device is tested: only the formats matter.
struct ReorderedRuns {
  Layout from;
  std::vector<Layout> others;
};
ReorderedRuns reordered(const Layout& layout);
// Returns the same model's history on one rank; on rank 0. Collective.
const History& reference(const Layout& layout);
void expect_bit_identical(const History& a, const History& b, const std::string& what);
// Checks that Trainer::load_kernels() before the first step changes no number of a step, and no parameter. Collective.
void expect_loading_changes_no_bit(Layout layout);

// Returns the layout with samples that suit the tested device: on GPUs the chunks of cp are whole tiles.
Layout on_test_device(Layout layout);
// Returns those of `layouts` that the job has ranks for; with fewer than eight ranks, smaller ones replace the others.
// They suit the tested device.
std::vector<Layout> that_fit(std::vector<Layout> layouts);

}  // namespace tri
