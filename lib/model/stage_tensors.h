// The memory of a stage: what a microbatch keeps between forward and backward, and the workspace that all its layers
// share. Pure set-up: it runs on a measuring arena as well, which is how memory is predicted.
#pragma once

#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/peer/copies.h"
#include "lib/model/fp8_tensors.h"
#include "lib/model/parameter.h"
#include "lib/parallel/mesh.h"

namespace tri {

// The order of heads in the QKV rows that attention reads, the same on all ranks; what qkv's GEMMs write and read is
// grouped. RoPE, which reads and writes them anyway, brings several groups into one query stride: cuDNN then takes many
// sequences at once.
QkvOrder attention_order(const ModelConfig& model, int tp);

// Sizes of one rank's share; letters as in kernels/core/dims.h.
struct StageDims {
  int B, T, C, NHl, NKVl, G, HS, Fl, Vl;
  int64_t R, Rl;
  int64_t qkv_width;  // NKVl · (G + 2) · HS
  int64_t fc1_width;  // Fl, or 2 · Fl for SwiGLU
  Dtype dtype;        // of weights and activations
  QkvOrder order;     // attention_order()
};
StageDims stage_dims(const Config& config, const Mesh& mesh);

// What one layer keeps of a microbatch. Which tensors exist depends on parallel.recompute:
//   none       all
//   norms      all but normed1 and normed2: recomputed from the kept stream, and gathered over tp once more
//   selective  nor `activated`, which is cheap to recompute from what is kept
//   full       only `input`; the rest is recomputed into a set shared by all layers
// normed1, normed2 and activated, which GEMMs alone read, are FP8 in layers that multiply FP8 (is_fp8_layer). Such a
// layer keeps the transpose of activated, which the weight gradient reads; the rows last until fc2's forward GEMM.
struct LayerTensors {
  Tensor input;         // (Rl, C): the residual stream on entry; a chunk's first layer uses the stage's input
  Tensor mean1, rstd1;  // (Rl) f32
  Tensor normed1;       // (R, C): gathered over tp
  Tensor qkv;           // (R, qkv_width), after RoPE, in attention_order()
  Tensor attention;     // (R, NHl · HS)
  Tensor lse;           // (B, NHl, T) f32
  Tensor middle;        // (Rl, C): the residual stream between attention and MLP; sequential block only
  Tensor mean2, rstd2;  // (Rl) f32; sequential block only
  Tensor normed2;       // (R, C); sequential block only
  Tensor fc1;           // (R, fc1_width)
  Tensor activated;     // (R, Fl)
  Tensor activated_t;   // (Fl, R); FP8 layers only. In the memory of `activated` where neither is kept
};

// Whether a backward pass finds what fc2's weight gradient reads: parallel.recompute none and norms.
bool keeps_activated(Recompute recompute);

struct MicrobatchTensors {
  std::vector<LayerTensors> layers;
  Tensor output;  // (Rl, C): input of the final norm; last virtual stage only
};

struct LayerWorkspace {
  Tensor partial;     // (R, C): outputs of row-parallel GEMMs; by collectives, the local rows hold their sum
  Tensor normed;      // (R, C): a gathered norm, recomputed; aliases nothing. Also the head's input
  Tensor activated;   // (R, Fl): an activation, recomputed (parallel.recompute: selective), or before its cast to FP8
  Tensor dstream;     // (R, C): the local rows are the running gradient of the residual stream, the rest its gather
  Tensor dnormed;     // (R, C): gradient of a gathered norm; by collectives, the local rows hold its sum
  Tensor dfc1;        // (R, fc1_width)
  Tensor dactivated;  // (R, Fl); SwiGLU only: GeLU's gradient is taken in place
  Tensor dattention;  // (R, NHl · HS)
  Tensor dqkv;        // (R, qkv_width), grouped
  Tensor rope_input;  // (R, qkv_width); where RoPE changes the order of heads: qkv's output, or attention's gradient
  Tensor delta;       // (B, NHl, T) f32
  LayerTensors recomputed;  // parallel.recompute: full
  Tensor rope_table;        // (T, HS/2, 2) f32
  Fp8Workspace fp8;         // where any layer's GEMMs are FP8
};

// The head's memory, on the last virtual stage.
struct HeadTensors {
  Tensor mean, rstd;  // (Rl) f32
  Tensor logits;      // (R, Vl)
  Tensor stats;       // (tp, R, 3) f32; tp > 1 only
  Tensor losses;      // (M) f32: sum over a microbatch's tokens
};

// `t` with the workspace's memory for what is not kept. `is_fp8`: is_fp8_layer() of the layer, here and below.
LayerTensors with_workspace(LayerTensors t, const LayerWorkspace& work, bool is_fp8);
// work.recomputed as one layer uses it.
LayerTensors recomputed_tensors(const LayerWorkspace& work, bool is_fp8);

struct StageTensors {
  std::vector<std::vector<MicrobatchTensors>> chunks;  // [chunk][slot]
  LayerWorkspace work;
  HeadTensors head;
  Fp8Tensors fp8;               // where any layer's GEMMs are FP8; else without slots
  PeerCopyTensors peer_copies;  // where parallel.tp_transfers is copies
  Tensor inputs, targets;       // (M, B, T) i32: the step's tokens, where a stage needs them
};

// `config` planned; `slots[chunk]`: microbatches in flight; `num_microbatches`: microbatches of a step.
StageTensors allocate_stage(const Config& config, const Mesh& mesh, const std::vector<int>& slots, int num_microbatches,
                            Arena& arena);

}  // namespace tri
