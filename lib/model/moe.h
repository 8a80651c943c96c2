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
// Rows reach other ranks in one of two ways, with the same bits (parallel.ep_transfers):
//   copies    copy engines send all tokens to all ranks of the group while the router runs, and each rank takes the
//             rows that its experts need; what they computed is read from the peers' memory. Numbers of rows stay on
//             the device, so the host does not wait.
//   messages  the rows themselves, to the ranks that need them; the host waits for their numbers once a layer
// With FP8, rows are cast before they are sent forward; the router's GEMMs and what returns are in the compute type.
// A forward pass with ep > 1 is collective over the ranks of ep. If one of these ranks would get more rows than it has
// memory for, the step ends with Fatal (kUsage) on all of them.
// Threads: call only from the training thread; all other work is enqueued on the compute stream.
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
#include "lib/parallel/mesh.h"

namespace tri {

class GroupOnStream;
class PeerWindows;
struct Config;

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
  double cast_bytes() const {
    const int64_t ffn = expert_hidden, shared = shared_hidden > 0 ? shared_hidden + 2 * width_of(shared_hidden) : 0;
    return static_cast<double>(hidden + per_token * (ffn + 2 * width_of(ffn) + 2 * hidden) + shared);
  }
  double activation_elements(Pass pass) const;
  double recomputed_elements() const { return activation_elements(Pass::kForward); }
  double column_elements(Pass, int) const { return 0; }
  double inner_elements(Pass pass, bool) const { return activation_elements(pass); }
  double epilogue_elements(Pass, bool) const { return 0; }

  bool operator==(const MoeSpec&) const = default;
};

// Where a microbatch's rows go, on the host, for messages.
struct MoeRoute {
  std::vector<int64_t> sends, receives;  // [place along ep]: rows
  std::vector<int32_t> offsets, counts;  // (ep, E + 1) of all members; (ep, E / ep) of the rows that arrive
};

// What one layer saves for the backward pass of a microbatch. P: the rows that the rank's experts have memory for:
// Rl · K, or with ep > 1 parallel.ep_capacity times as many. The first rank_offsets[E / ep] are used.
struct MoeTensors {
  Tensor logits;   // (Rl, E) f32
  Tensor experts;  // (Rl, K) i32
  Tensor weights;  // (Rl, K) f32
  // (E) f32: of the whole microbatch; only with an auxiliary loss. Also saved with parallel.recompute: full
  Tensor all_counts;
  Tensor place, pair, offsets;         // of the rank's own rows: SortPairs
  Tensor rank_offsets;                 // (E / ep + 1) of the rank's experts; with ep 1 `offsets`
  Tensor first, origin;                // copies: (E), (P), of PlanRows
  Tensor arrived_place, arrived_pair;  // messages: (P), of MergeSources
  Tensor rows;                         // (P, C): what the experts read
  Tensor fc1;                          // (P, fc1's width)
  Tensor activated;                    // (P, F); in the workspace with parallel.recompute: selective
  Tensor returned;                     // (Rl · K, C): the experts' outputs, sorted by expert
  Tensor shared_fc1;                   // (Rl, fc1's width)
  Tensor shared_activated;             // (Rl, F of the shared expert)
  // With FP8 `rows` are e4m3, and the activations that fc2's GEMMs read: forward in the workspace, for the weight
  // gradients transposed, in the same memory if they are not saved.
  Tensor activated_t, shared_activated_t;  // (F, P), (F of the shared expert, Rl)
  std::shared_ptr<MoeRoute> route;
};

// The workspace that the layers of a stage share.
struct MoeWorkspace {
  Tensor counts, share_sums;              // (E), (E + 1) f32
  Tensor all_offsets;                     // (ep, E + 1) i32; ep > 1
  Tensor arrived_counts;                  // (ep, E / ep) i32; messages
  Tensor all_pairs;                       // (ep, Rl · K) i32; copies
  Tensor tokens, all_weights;             // (ep · Rl, C), (ep · Rl, K) f32: of all ranks; copies
  Tensor sent, arrived;                   // (Rl · K, C), (P, C): rows before and after messages; copies: sent
  Tensor out;                             // (P, C); ep > 1
  Tensor activated, shared_activated;     // parallel.recompute: selective
  Tensor dreturned;                       // (Rl · K, C)
  Tensor dout;                            // (P, C): the gradient of fc2's output; with ep 1 dreturned
  Tensor dactivated, dfc1, drows;         // (P, F), (P, fc1's width), (P, C)
  Tensor dweights;                        // (Rl, K) f32
  Tensor dlogits;                         // (Rl, E)
  Tensor shared_dfc1, shared_dactivated;  // (Rl, ...)
  // FP8 casts, if any layer's GEMMs are FP8: like the tensors above, `_t` transposed.
  struct Fp8 {
    Tensor rows;                                      // (Rl, C): of the norm
    Tensor activated, shared_activated;               // (P, F), (Rl, ...)
    Tensor dreturned, dout;                           // (Rl · K, C), (P, C); the same with ep 1
    Tensor dfc1, dfc1_t;                              // (P, fc1's width)
    Tensor transpose;                                 // (C · P) bytes: of dout or rows, for weight gradients
    Tensor shared_dout, shared_dout_t;                // (Rl, C)
    Tensor shared_dfc1, shared_dfc1_t, shared_inp_t;  // (Rl, ...), (C, Rl)
  } fp8;
};

// The statistics and biases of all layers with experts, on every rank: numbers of layers that other ranks compute are
// zero until they are summed.
struct MoeStatistics {
  static constexpr int kLosses = 2;  // after the loads: auxiliary loss, router z-loss
  Tensor totals;                     // (layers, E + kLosses) f32, of a step; training only
  Tensor bias;                       // (layers, E) f32; only of sigmoid routers
  Tensor shortage;                   // (layers, kRowShortage) i32: of PlanRows, since begin(); with copies

  Tensor load(int64_t layer) const { return totals.rows(layer, 1).flat(0, totals[1] - kLosses); }
  Tensor losses(int64_t layer) const { return totals.rows(layer, 1).flat(totals[1] - kLosses, kLosses); }
};

// What the layers with experts of a stage share. The stage changes it between actions.
struct MoeRun {
  GroupOnStream* ep = nullptr;     // the ranks that divide the experts, on the compute stream; null: rows stay here
  PeerWindows* windows = nullptr;  // their memory, with parallel.ep_transfers: copies
  MoeStatistics statistics;
  float token_share = 0;              // 1 / tokens of a step, over which the router's losses are means
  bool counts = false;                // the next forward passes count for the step; recomputed ones do not
  std::vector<int32_t> experts = {};  // (Rl, K): those of the rows, instead of the routers' choice; empty: the latter
};

// An owner of experts lacks memory for the rows that a microbatch sends to it.
struct RowShortage {
  int layer = 0;  // of the model
  int64_t rows = 0, first_expert = 0, fullest_expert = 0, fullest_rows = 0;
};
template <class Archive>
void fields(Archive& archive, RowShortage& s) {
  archive(s.layer, s.rows, s.first_expert, s.fullest_expert, s.fullest_rows);
}
// Returns the error: what happened, and how to change the config.
std::string to_string(const RowShortage& shortage, const Config& config);

// A step of one layer with experts.
struct RouterNumbers {
  std::vector<float> load;  // [expert]: rows that chose it, over all ranks and microbatches
  float aux_loss = 0;       // the auxiliary loss and the router's z loss, with their weights
  float z_loss = 0;
};

// Returns the rows P (MoeTensors) for `local_rows` rows of a rank; with ep > 1 whole multiples of 16, for FP8.
int64_t expert_rows(const MoeSpec& moe, int64_t local_rows, int ep, double capacity);

// Returns K different experts for each row of a rank, (local_rows, K). If all ranks of ep send their rows there, each
// rank's experts receive local_rows · K rows, for which they have memory with every parallel.ep_capacity.
std::vector<int32_t> experts_in_turn(const MoeSpec& moe, int64_t local_rows, Axis ep);

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
MoeTensors with_workspace(MoeTensors tensors, const MoeWorkspace& work, bool fp8);
std::unique_ptr<BranchLayer> make_branch(const MoeSpec& moe, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters);

}  // namespace tri
