// A mixture of experts as a kind of branch: its spec, the tensors that it saves for a microbatch, and its workspace.
// The steps that run it are a BranchLayer (branch.h), made in moe.cpp.
//
// Between branches a tp rank holds its own rows (Rl, C), so every rank of a stage is a source of distinct rows, and no
// rows are gathered over tp. An expert's weights are whole matrices on one rank of each group of parallel.ep ranks:
//   router (Rl, E) -> K experts and weights per row -> the Rl · K rows sorted by expert -> to the experts' ranks ->
//   fc1, activation, fc2 of each expert -> back -> their weighted sum, in the order of a row's choices
// A shared expert is a dense MLP over the rank's own rows, whose output joins that sum. Router and shared expert are
// the same on all ranks of a stage.
//
// A forward pass with ep > 1 is collective over the ranks of ep: once per layer the host waits for the numbers of rows.
// If one of these ranks would get more rows than it has memory for, all of them throw Fatal (kUsage).
// Threads: call only from the rank's main thread; all other work is enqueued on the compute stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/base/error.h"
#include "kernels/core/arena.h"
#include "kernels/core/device.h"
#include "kernels/core/kinds.h"
#include "kernels/router.h"
#include "lib/config/kinds.h"
#include "lib/model/linear_spec.h"

namespace tri {

class GroupOnStream;

struct MoeSpec {
  int64_t hidden = 0, expert_hidden = 0, shared_hidden = 0;  // shared_hidden 0: no shared expert
  int64_t experts = 0, per_token = 0;                        // E, K; experts 0: the layer is dense
  Activation activation = Activation::kGelu;
  RouterRule rule;
  int first_layer = 0;  // of the layers with experts

  bool gated() const { return is_gated(activation); }
  int64_t width_of(int64_t ffn) const { return gated() ? 2 * ffn : ffn; }  // of fc1's outputs
  LinearSpec router() const;
  std::vector<ModuleSpec> modules() const;  // in the order of the forward pass
  // Per token, as in MlpSpec. Rows of experts count K times.
  double kept_elements() const {
    return static_cast<double>(per_token * (2 * hidden + width_of(expert_hidden)) + width_of(shared_hidden));
  }
  double activated_elements() const { return static_cast<double>(per_token * expert_hidden + shared_hidden); }
  double kept_statistics() const { return static_cast<double>(experts + 4 * per_token); }
  double core_flops_per_token(AttentionWork) const { return 0; }
  int64_t widest_output(int) const;
  double workspace_elements(QkvOrder) const {
    return static_cast<double>(per_token * (3 * hidden + width_of(expert_hidden) + expert_hidden));
  }
  double cast_bytes() const { return 0; }
  double activation_elements(Pass pass) const;
  double recomputed_elements() const { return activation_elements(Pass::kForward); }
  double column_elements(Pass, int) const { return 0; }
  double inner_elements(Pass pass, bool) const { return activation_elements(pass); }
  double epilogue_elements(Pass, bool) const { return 0; }

  bool operator==(const MoeSpec&) const = default;
};

// Where a microbatch's rows go, on the host. `rows`: those that this rank's experts compute.
struct MoeRoute {
  int64_t rows = 0;
  std::vector<int64_t> sends, receives;  // [place along ep]: rows
  std::vector<int32_t> offsets, counts;  // (ep, E + 1) of all members; (ep, E / ep) of the rows that arrive
};

// What one layer saves for the backward pass of a microbatch. P: the rows that the rank's experts have memory for:
// Rl · K, or with ep > 1 parallel.ep_capacity times as many. The first MoeRoute::rows are used.
struct MoeTensors {
  Tensor logits;                                     // (Rl, E) f32
  Tensor experts;                                    // (Rl, K) i32
  Tensor weights;                                    // (Rl, K) f32
  Tensor all_counts;                                 // (E) f32: of the whole microbatch; only with an auxiliary loss
  Tensor place, pair, offsets;                       // of the rank's own rows: SortPairs
  Tensor arrived_place, arrived_pair, rank_offsets;  // of the rows that arrive (MergeSources); with ep 1 only
                                                     // rank_offsets, which is `offsets`
  Tensor rows;                                       // (P, C): what the experts read
  Tensor fc1;                                        // (P, fc1's width)
  Tensor activated;                                  // (P, F); in the workspace with parallel.recompute: selective
  Tensor returned;                                   // (Rl · K, C): the experts' outputs, sorted by expert
  Tensor shared_fc1;                                 // (Rl, fc1's width)
  Tensor shared_activated;                           // (Rl, F of the shared expert)
  std::shared_ptr<MoeRoute> route;
};

// The workspace that the layers of a stage share.
struct MoeWorkspace {
  Tensor counts, share_sums;              // (E), (E + 1) f32
  Tensor all_offsets, arrived_counts;     // (ep, E + 1), (ep, E / ep) i32; ep > 1
  Tensor sent, arrived, out;              // (Rl · K, C), (P, C), (P, C); ep > 1: rows before and after transfers
  Tensor activated, shared_activated;     // parallel.recompute: selective
  Tensor dreturned;                       // (Rl · K, C)
  Tensor dout;                            // (P, C): the gradient of fc2's output; with ep 1 dreturned
  Tensor dactivated, dfc1, drows;         // (P, F), (P, fc1's width), (P, C)
  Tensor dweights;                        // (Rl, K) f32
  Tensor dlogits;                         // (Rl, E)
  Tensor shared_dfc1, shared_dactivated;  // (Rl, ...)
};

// The statistics and biases of all layers with experts, on every rank: numbers of layers that other ranks compute are
// zero until they are summed.
struct MoeStatistics {
  static constexpr int kLosses = 2;  // after the loads: auxiliary loss, router z-loss
  Tensor totals;                     // (layers, E + kLosses) f32, of a step; training only
  Tensor bias;                       // (layers, E) f32; only of sigmoid routers

  Tensor load(int64_t layer) const { return totals.rows(layer, 1).flat(0, totals[1] - kLosses); }
  Tensor losses(int64_t layer) const { return totals.rows(layer, 1).flat(totals[1] - kLosses, kLosses); }
};

// What the layers with experts of a stage share. The stage changes it between actions.
struct MoeRun {
  GroupOnStream* ep = nullptr;  // the ranks that divide the experts, on the compute stream; null: rows stay here
  MoeStatistics statistics;
  float token_share = 0;  // 1 / tokens of a step, over which the router's losses are means
  bool counts = false;    // the next forward passes count for the step; recomputed ones do not
};

// A step of one layer with experts.
struct RouterNumbers {
  std::vector<float> load;  // [expert]: rows that chose it, over all ranks and microbatches
  float aux_loss = 0;       // the auxiliary loss and the router's z loss, with their weights
  float z_loss = 0;
};

// Returns the rows P (MoeTensors) for `local_rows` rows of a rank.
int64_t expert_rows(const MoeSpec& moe, int64_t local_rows, int ep, double capacity);

// Copies saved biases to the device. Fails with kFile if their number is wrong. Waits for the stream.
Result<void> load_router_bias(const std::vector<float>& saved, const Tensor& bias, Stream& stream);

class BranchLayer;
struct BranchMemory;
struct LayerSpec;
struct LayerTensors;
struct LayerWorkspace;
struct Parameter;
void allocate_tensors(const MoeSpec& moe, const BranchMemory& memory, LayerTensors& tensors);
void allocate_workspace(const MoeSpec& moe, const BranchMemory& memory, LayerWorkspace& work);
// As for attention.
void allocate_due(const MoeSpec& moe, const BranchMemory& memory, LayerTensors& inputs, LayerWorkspace& work);
MoeTensors with_workspace(MoeTensors tensors, const MoeWorkspace& work);
std::unique_ptr<BranchLayer> make_branch(const MoeSpec& moe, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters);

}  // namespace tri
