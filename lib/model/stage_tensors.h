// The memory of a stage: what a microbatch saves between forward and backward, and the workspace that all its layers
// share. Set-up only; running it on a measuring arena predicts the memory.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/peer/copies.h"
#include "lib/model/cached_rows.h"
#include "lib/model/fp8_tensors.h"
#include "lib/model/parameter.h"
#include "lib/parallel/mesh.h"
#include "lib/parallel/sequence_chunks.h"

namespace tri {

// Sizes of one rank's share, the same in all layers; letters as in kernels/core/dims.h. Those of a branch: share_of().
struct StageDims {
  int B, T, C, Vl;  // T: the positions of a sample that this rank processes, `chunks`
  int64_t R, Rl;
  int tp;
  SequenceChunks chunks;
  Dtype dtype;  // of weights and activations
};
// `cache`: for passes over cached sequences, R is cache.rows.
StageDims stage_dims(const Config& config, const Mesh& mesh, const CacheSize& cache = {});

// Where the tensors of a branch are allocated.
struct BranchMemory {
  const Config& config;
  const StageDims& dims;
  bool fp8;          // whether the layer's GEMMs multiply FP8
  std::string name;  // under which the arena accounts them
  Arena& arena;

  Tensor take(Dtype dtype, std::initializer_list<int64_t> shape) const { return arena.take(name, dtype, shape); }
};

// A norm's statistics.
struct NormTensors {
  Tensor mean, rstd;  // (Rl) f32; RMSNorm has no mean
};

// What one layer saves for a microbatch. Which tensors exist depends on parallel.recompute:
//   none       all
//   norms      all but `normed`, which are recomputed from the saved stream and gathered over tp again
//   selective  also without mlp.activated, which is cheap to recompute from what is saved
//   full       only `input`, and moe.all_counts; the rest is recomputed into a set shared by all layers
// `normed` and mlp.activated, which only GEMMs read, are FP8 in layers that multiply FP8. Such a layer
// saves the transpose of mlp.activated, which the weight gradient reads; the rows last until fc2's forward GEMM.
struct LayerTensors {
  Tensor input;   // (Rl, C): the residual stream on entry; a chunk's first layer uses the stage's input
  Tensor middle;  // (Rl, C): the residual stream between attention and MLP; sequential block only
  std::vector<NormTensors> norms;  // [LayerSpec::norms]
  // [Branch] (R, C): the gathered rows that it reads, of a norm or of the residual stream; perhaps the same
  std::array<Tensor, 2> normed;
  std::array<Tensor, 2> outputs;  // [Branch] (Rl, C): its output, if a norm follows
  AttentionTensors attention;
  MlpTensors mlp;
  MoeTensors moe;  // of a layer with experts, instead of mlp

  Tensor normed_for(Branch branch) const { return normed[static_cast<size_t>(branch)]; }
};

// Whether positions restart at each document.
bool resets_positions(const Config& config);
// Whether the forward pass saves what fc2's weight gradient reads: parallel.recompute none and norms.
bool keeps_activated(Recompute recompute);

struct MicrobatchTensors {
  std::vector<LayerTensors> layers;
  Tensor output;  // (Rl, C): input of the final norm; last virtual stage only
};

struct LayerWorkspace {
  Tensor partial;  // (R, C): outputs of row-parallel GEMMs; with collectives, the local rows hold their sum
  Tensor normed;   // (R, C): a gathered norm, recomputed; shares no memory. Also the head's input
  Tensor dstream;  // (R, C): the local rows are the running gradient of the residual stream, the others its gather
  Tensor dnormed;  // (R, C): gradient of a gathered norm; with collectives, the local rows hold its sum
  // (R, C): the gradient of a branch's output, gathered: dstream itself, unless a norm follows the branch
  Tensor dbranch;
  Tensor branch;  // (Rl, C): the norm of a branch's output, which is to be added to the residual stream
  Tensor bias;    // (C): the sum of the branches' biases, where they are added at once
  AttentionWorkspace attention;
  MlpWorkspace mlp;
  MoeWorkspace moe;
  Fp8Workspace fp8;         // if any layer's GEMMs are FP8
  LayerTensors recomputed;  // parallel.recompute: full
};

// What the weight gradients of a layer read that is not saved with the activations, for a microbatch whose kWeight
// action is due (lib/schedule/plan.h). The backward pass writes it in place of the stage's workspace.
struct DueLayer {
  LayerTensors inputs;            // those inputs of linears that parallel.recompute does not save; unless it is full
  LayerWorkspace work;            // the workspace of the backward pass: gradients of the linears' outputs are in memory
                                  // of their own, and with full the recomputed inputs too
  std::array<Tensor, 2> dbranch;  // [Branch] (R, C): the gradient of its output, gathered; FP8: its transpose (C, R)
};

// The head's memory, on the last virtual stage.
struct HeadTensors {
  Tensor mean, rstd;  // (Rl) f32
  Tensor logits;      // (R, Vl)
  Tensor stats;       // (tp, R, 3) f32; only if tp > 1 or sequences are cached
  Tensor losses;      // (M) f32: sum over a microbatch's tokens
};

// Returns `t` with the workspace's memory for what is not saved.
LayerTensors with_workspace(LayerTensors t, const LayerWorkspace& work, const LayerSpec& layer);
// Returns work.recomputed as one layer uses it.
LayerTensors recomputed_tensors(const LayerWorkspace& work, const LayerSpec& layer);

struct StageTensors {
  std::vector<std::vector<MicrobatchTensors>> chunks;   // [chunk][slot]
  std::vector<std::vector<std::vector<DueLayer>>> due;  // [chunk][slot][layer]; empty if backward is not split
  LayerWorkspace work;
  HeadTensors head;
  MoeStatistics experts;        // without layers with experts: absent tensors. `totals` come from the caller
  Fp8Tensors fp8;               // without slots if no layer's GEMMs are FP8
  PeerCopyTensors peer_copies;  // if parallel.tp_transfers is copies
  Tensor expert_flags;          // (kFlagRows, ep) i32, of PeerWindows; if parallel.ep_transfers is copies
  // (M, B, T) i32: the step's tokens, if the stage needs them; with cached sequences (1, 1, R), those of a pass
  Tensor inputs, targets;
  Tensor document_starts;  // (M, B, T) i32, with data.document_mask, on every stage: first_key of attention
  Tensor position_rows;    // (Rl, C): rows of learned positions, with data.reset_positions; first stage only
  CachedRowTensors cached;
};

// `config` must be planned. `slots[chunk]`: microbatches in flight; `num_microbatches`: microbatches of a step. A
// config with cached sequences has a microbatch of one sequence, one microbatch, full recompute and no FP8 layer.
// `due[chunk]`: microbatches that wait for their kWeight action; empty: the backward pass is not split.
StageTensors allocate_stage(const Config& config, const Mesh& mesh, const std::vector<int>& slots, int num_microbatches,
                            Arena& arena, const CacheSize& cache = {}, const std::vector<int>& due = {});

}  // namespace tri
