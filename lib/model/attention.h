// Attention as a kind of branch: its spec, the tensors that it saves for a microbatch, and its workspace. The steps
// that run it are a BranchLayer (branch.h), made in attention.cpp.
#pragma once

#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/core/arena.h"
#include "kernels/core/kinds.h"
#include "kernels/rope.h"
#include "lib/config/kinds.h"
#include "lib/model/linear_spec.h"
#include "lib/parallel/sequence_chunks.h"

namespace tri {

// Multi-head attention with grouped key/value heads: QKV projection, optional RoPE, causal softmax, output projection.
struct AttentionSpec {
  int64_t hidden = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int seq_len = 0, window = 0;  // window 0: all earlier tokens
  bool rope = false;
  QkNorm qk_norm = QkNorm::kNone;          // RMSNorm of queries and keys before RoPE
  double norm_eps = 0, norm_offset = 0;    // of qk_norm
  bool local_rope = false;                 // with the angles of model.rope_theta_local
  double scale = 0;                        // of scores; 0: 1 / sqrt(head_dim)
  double softcap = 0;                      // of scores; 0: none
  bool documents = false;                  // data.document_mask
  bool bias = false, output_bias = false;  // of qkv, of proj

  int64_t width() const { return int64_t{heads} * head_dim; }        // of the queries, and of the rows that proj reads
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }  // of the keys, and of the values
  int64_t qkv_width() const { return width() + 2 * kv_width(); }
  LinearSpec qkv() const;
  LinearSpec proj() const;
  std::vector<ModuleSpec> modules() const;          // in the order of the forward pass
  double keys_per_query(AttentionWork work) const;  // the mean over a sequence
  // Returns the FLOPs of the products with keys and values, forward and backward.
  double core_flops_per_token(AttentionWork work) const;
  double flops_per_pair() const { return 12.0 * static_cast<double>(width()); }  // the same of a query and a key
  // Elements saved per token with every recompute except `full`: in the compute type (qkv and proj's rows), and in fp32
  // (lse).
  double kept_elements() const {
    return static_cast<double>((qk_norm != QkNorm::kNone ? 2 : 1) * qkv_width() + width());
  }
  double kept_statistics() const { return heads; }
  // Statistics that each tp rank saves per token: those of QK-norm over the full width, of all heads.
  double unsplit_statistics() const { return qk_norm == QkNorm::kFull ? 2 : 0; }
  double activated_elements() const { return 0; }   // saved in addition, as in MlpSpec
  double recomputed_elements() const { return 0; }  // as in MlpSpec
  // The workspace per token: in the compute type dout, dqkv and rope_input; with FP8 also the bytes of casts.
  double workspace_elements(QkvOrder order) const {
    return static_cast<double>(width() + (order == QkvOrder::kGrouped ? 1 : 2) * qkv_width());
  }
  double cast_bytes() const { return static_cast<double>(width() + 2 * qkv_width()); }
  int64_t widest_output(int tp) const;  // of the columns that a tp rank's linears write
  // Returns the elements per token that QK-norm and RoPE read and write; 0 without either. `in_place`: RoPE without
  // QK-norm keeps the order of heads, so it only processes queries and keys.
  double rope_elements(Pass pass, bool in_place) const;
  // The same as the model runs them: next to qkv's GEMMs, over all ranks of a tp group.
  double column_elements(Pass pass, int tp) const;

  bool operator==(const AttentionSpec&) const = default;
};

// Returns the order of heads in the QKV rows that attention reads, the same on all ranks. qkv's GEMMs write and read
// grouped rows. RoPE, which rewrites the rows anyway, brings several groups into one query stride: cuDNN then processes
// many sequences at once.
QkvOrder attention_order(const AttentionSpec& attention, int tp);

// Returns the number of groups of key/value heads, of one tp rank, that cp ranks exchange one after the other, so that
// attention over a group runs concurrently with the transfer of the next. One group inside a machine, where a transfer
// takes less time than kernels lose over fewer heads.
int kv_head_groups(const AttentionSpec& attention, int tp, int cp, int ranks_per_node, bool overlap);

// One tp rank's share; letters as in kernels/core/dims.h. With fewer key/value heads than ranks, as other programs
// allow, each rank holds one.
struct AttentionShare {
  int NHl, NKVl, G, HS;
  int64_t qkv_width, width;  // of a row: NKVl · (G + 2) · HS, NHl · HS
  QkvOrder order;
};
AttentionShare share_of(const AttentionSpec& attention, int tp);

// One layer's keys and values of earlier tokens, in passes over cached sequences (cached_rows.h). S sequences, P slots.
struct KeyValueCache {
  Tensor keys, values;  // (S, P, NKVl · HS)
};

// What one layer saves for the backward pass of a microbatch.
struct AttentionTensors {
  Tensor projected;     // (R, qkv_width), grouped: qkv's output, only with QK-norm, whose backward pass reads it
  Tensor qkv;           // (R, qkv_width), after QK-norm and RoPE, in attention_order()
  Tensor out;           // (R, NHl · HS): what proj reads
  Tensor lse;           // (B, NHl, T) f32
  Tensor qk_rstd;       // (R, 2) f32: of QK-norm over the full width, for queries and for keys
  KeyValueCache cache;  // present: a pass over cached sequences, without a backward pass
};

// Cosines and sines of rotary positions, of each kind of layer that the model has.
struct RopeTables {
  Tensor global, local;  // local: of layers with AttentionSpec::local_rope
  Tensor of(const AttentionSpec& attention) const { return attention.local_rope ? local : global; }
};

// The workspace that the layers of a stage share.
struct AttentionWorkspace {
  Tensor dout;        // (R, NHl · HS): the gradient of AttentionTensors::out
  Tensor dqkv;        // (R, qkv_width), grouped
  Tensor rope_input;  // (R, qkv_width); only if RoPE changes the order of heads: qkv's output, or attention's gradient
  Tensor delta;       // (B, NHl, T) f32
  // (T, HS/2, 2) f32; with data.reset_positions, of all positions of a sample; in passes over cached sequences
  // (R, HS/2, 2), the angles of each row
  RopeTables rope;
  // With context parallelism: (groups of heads, B · the length of a sample, NKVl / groups · 2 · HS): keys and values of
  // whole samples, and their gradients. kv then receives the other ranks' gradients (kv_exchange.h).
  Tensor kv, dkv;
  Tensor qk_sums;  // (R, 2) f32: sums over the heads of all tp ranks, for QK-norm over the full width
  // (R) i32: of each row in a pass over cached sequences; with data.reset_positions, its position in its document
  Tensor sequences, positions;
  RopeTables document_rope;  // (R, HS/2, 2) f32, with data.reset_positions: the rows of `rope` at `positions`
  // FP8 casts, if any layer's GEMMs are FP8: of AttentionTensors::out, of dqkv, and the transpose of the latter.
  Tensor fp8_out, fp8_dqkv, fp8_dqkv_t;
};

// Returns the shape by which a GPU chooses its kernels.
AttentionShape kernel_shape(const AttentionSpec& attention, int tp, int cp, Dtype dtype, int micro_batch);

class BranchLayer;
struct BranchMemory;
struct LayerSpec;
struct LayerTensors;
struct LayerWorkspace;
struct ModelConfig;
struct Parameter;
void allocate_tensors(const AttentionSpec& attention, const BranchMemory& memory, LayerTensors& tensors);
void allocate_workspace(const AttentionSpec& attention, const BranchMemory& memory, LayerWorkspace& work);
// For weight gradients that a later action computes (DueLayer): allocates memory of their own for the inputs of linears
// that the layer does not save, and for the gradients of the linears' outputs.
void allocate_due(const AttentionSpec& attention, const BranchMemory& memory, LayerTensors& inputs,
                  LayerWorkspace& work);
// Return views of the first rows, as first_rows does for all tensors of a layer.
AttentionTensors first_rows(AttentionTensors tensors, int64_t rows);
// Fills the tables of rotary angles that the model has: for the positions of `chunks`, or for all positions of a sample
// if each microbatch looks up its own (document_rope). Waits for the copies.
void fill_angles(const AttentionWorkspace& work, const ModelConfig& model, const SequenceChunks& chunks,
                 Stream& compute);
// Fills `rows`, the angles of a microbatch's rows, with those of `tables` at `positions` (R) i32.
void look_up_angles(const RopeTables& rows, const RopeTables& tables, Tensor positions, Stream& compute);
std::unique_ptr<BranchLayer> make_branch(const AttentionSpec& attention, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters);

}  // namespace tri
