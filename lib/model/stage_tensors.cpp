#include "lib/model/stage_tensors.h"

#include "kernels/core/dims.h"
#include "kernels/core/qkv_row.h"
#include "lib/schedule/plan.h"

namespace tri {
namespace {

class Allocator {
 public:
  Allocator(const Config& config, const Mesh& mesh, Arena& arena)
      : config_(config), tp_(mesh.axis("tp")), d_(stage_dims(config, mesh)), arena_(arena) {}

  // The tensors of a layer apart from `input`: those that are kept, or for `full` those that all layers share.
  LayerTensors layer(const std::string& name, Recompute recompute, bool is_fp8) {
    const Dtype read = is_fp8 ? Dtype::kE4M3 : d_.dtype;  // of what GEMMs alone read
    const bool sequential = config_.model.block == Block::kSequential;
    const bool layernorm = config_.model.norm == Norm::kLayerNorm;
    LayerTensors t;
    if (layernorm) t.mean1 = arena_.take(name, Dtype::kF32, {d_.Rl});
    t.rstd1 = arena_.take(name, Dtype::kF32, {d_.Rl});
    t.qkv = arena_.take(name, d_.dtype, {d_.R, d_.qkv_width});
    t.attention = arena_.take(name, d_.dtype, {d_.R, int64_t{d_.NHl} * d_.HS});
    t.lse = arena_.take(name, Dtype::kF32, {d_.B, d_.NHl, d_.T});
    t.fc1 = arena_.take(name, d_.dtype, {d_.R, d_.fc1_width});
    if (sequential) {
      t.middle = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
      if (layernorm) t.mean2 = arena_.take(name, Dtype::kF32, {d_.Rl});
      t.rstd2 = arena_.take(name, Dtype::kF32, {d_.Rl});
    }
    if (recompute == Recompute::kNone || recompute == Recompute::kFull) {
      t.normed1 = arena_.take(name, read, {d_.R, d_.C});
      if (sequential) t.normed2 = arena_.take(name, read, {d_.R, d_.C});
    }
    if (!is_fp8 && recompute != Recompute::kSelective) t.activated = arena_.take(name, read, {d_.R, d_.Fl});
    if (is_fp8 && keeps_activated(recompute)) t.activated_t = arena_.take(name, read, {d_.Fl, d_.R});
    return t;
  }

  MicrobatchTensors microbatch(LayerRange layers, bool last_virtual_stage) {
    const std::string name = "activations in flight";
    MicrobatchTensors m;
    for (int i = 0; i < layers.count; ++i) {
      LayerTensors t;
      if (config_.parallel.recompute != Recompute::kFull)
        t = layer(name, config_.parallel.recompute, is_fp8_layer(config_, layers.first + i));
      if (i > 0) t.input = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
      m.layers.push_back(t);
    }
    if (last_virtual_stage) m.output = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
    return m;
  }

  LayerWorkspace workspace() {
    const std::string name = "workspace";
    const Recompute recompute = config_.parallel.recompute;
    LayerWorkspace w;
    w.partial = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.normed = arena_.take(name, d_.dtype, {d_.R, d_.C});
    if (recompute == Recompute::kSelective) w.activated = arena_.take(name, d_.dtype, {d_.R, d_.Fl});
    w.dstream = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.dnormed = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.dfc1 = arena_.take(name, d_.dtype, {d_.R, d_.fc1_width});
    if (config_.model.activation == Activation::kSwiglu) w.dactivated = arena_.take(name, d_.dtype, {d_.R, d_.Fl});
    w.dattention = arena_.take(name, d_.dtype, {d_.R, int64_t{d_.NHl} * d_.HS});
    w.dqkv = arena_.take(name, d_.dtype, {d_.R, d_.qkv_width});
    if (d_.order != QkvOrder::kGrouped) w.rope_input = arena_.take(name, d_.dtype, {d_.R, d_.qkv_width});
    w.delta = arena_.take(name, Dtype::kF32, {d_.B, d_.NHl, d_.T});
    if (any_fp8_layer(config_)) w.fp8 = allocate_fp8_workspace(config_, d_, arena_);
    if (recompute == Recompute::kFull) w.recomputed = layer(name, recompute, all_layers_are_fp8());
    if (config_.model.position == Position::kRope) w.rope_table = arena_.take(name, Dtype::kF32, {d_.T, d_.HS / 2, 2});
    return w;
  }

  HeadTensors head(int num_microbatches) {
    HeadTensors h;
    if (config_.model.norm == Norm::kLayerNorm) h.mean = arena_.take("head", Dtype::kF32, {d_.Rl});
    h.rstd = arena_.take("head", Dtype::kF32, {d_.Rl});
    h.logits = arena_.take("head", d_.dtype, {d_.R, d_.Vl});
    if (tp_.size > 1) h.stats = arena_.take("head", Dtype::kF32, {tp_.size, d_.R, 3});
    h.losses = arena_.take("head", Dtype::kF32, {num_microbatches});
    return h;
  }

 private:
  // Otherwise memory that all layers share is sized for precision.compute, whose tensors are larger.
  bool all_layers_are_fp8() const {
    const PrecisionConfig& p = config_.precision;
    return any_fp8_layer(config_) && p.fp8_first_layers + p.fp8_last_layers == 0;
  }

  const Config& config_;
  const Axis tp_;
  const StageDims d_;
  Arena& arena_;
};

// Of an FP8 layer's activation: the rows, and the transpose where it is not kept.
void add_activated(LayerTensors& t, const Fp8Workspace& work) {
  t.activated = work.activated;
  if (t.activated_t.empty()) t.activated_t = t.activated.view({t.activated[1], t.activated[0]});
}

}  // namespace

QkvOrder attention_order(const ModelConfig& m, int tp) {
  const bool changes =
      m.position == Position::kRope && !has_one_query_stride(QkvOrder::kGrouped, m.kv_heads / tp, m.heads / m.kv_heads);
  return changes ? QkvOrder::kByKind : QkvOrder::kGrouped;
}

bool keeps_activated(Recompute recompute) { return recompute == Recompute::kNone || recompute == Recompute::kNorms; }

LayerTensors with_workspace(LayerTensors t, const LayerWorkspace& work, bool is_fp8) {
  if (t.normed1.empty()) t.normed1 = t.normed2 = is_fp8 ? work.fp8.normed : work.normed;
  if (is_fp8)
    add_activated(t, work.fp8);
  else if (t.activated.empty())
    t.activated = work.activated;
  return t;
}

LayerTensors recomputed_tensors(const LayerWorkspace& work, bool is_fp8) {
  LayerTensors t = work.recomputed;
  TRI_REQUIRE(is_fp8 || !tri::is_fp8(t.normed1.dtype), "memory of an FP8 layer for one of another format");
  if (!is_fp8) return t;
  for (Tensor* const read : {&t.normed1, &t.normed2}) read->dtype = Dtype::kE4M3;
  add_activated(t, work.fp8);
  return t;
}

StageDims stage_dims(const Config& config, const Mesh& mesh) {
  const ModelConfig& m = config.model;
  StageDims d{};
  d.B = config.data.micro_batch;
  d.T = m.seq_len;
  d.C = m.hidden;
  d.HS = head_size(m);
  d.NHl = m.heads / mesh.axis("tp").size;
  d.NKVl = m.kv_heads / mesh.axis("tp").size;
  d.G = m.heads / m.kv_heads;
  d.Fl = m.ffn_hidden / mesh.axis("tp").size;
  d.Vl = static_cast<int>(padded_vocab(m) / mesh.axis("tp").size);
  d.R = int64_t{d.B} * d.T;
  d.Rl = d.R / mesh.axis("tp").size;
  d.qkv_width = int64_t{d.NKVl} * (d.G + 2) * d.HS;
  d.fc1_width = m.activation == Activation::kSwiglu ? 2 * int64_t{d.Fl} : d.Fl;
  d.dtype = config.precision.compute;
  d.order = attention_order(m, mesh.axis("tp").size);
  return d;
}

StageTensors allocate_stage(const Config& config, const Mesh& mesh, const std::vector<int>& slots, int num_microbatches,
                            Arena& arena) {
  TRI_REQUIRE(config.parallel.recompute != Recompute::kAuto, "parallel.recompute: auto is not decided");
  Allocator allocator(config, mesh, arena);
  const int chunks = config.parallel.chunks;
  StageTensors stage;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool last = is_last_virtual_stage(mesh.axis("pp"), chunk, chunks);
    std::vector<MicrobatchTensors> in_flight;
    for (int slot = 0; slot < slots[chunk]; ++slot)
      in_flight.push_back(allocator.microbatch(layers_of(config, mesh.axis("pp"), chunk), last));
    stage.chunks.push_back(std::move(in_flight));
  }
  stage.work = allocator.workspace();
  if (mesh.axis("pp").last()) stage.head = allocator.head(num_microbatches);
  const StageDims d = stage_dims(config, mesh);
  if (any_fp8_layer(config)) stage.fp8 = allocate_fp8(config, mesh, d, arena);
  if (by_peer_copies(config.parallel.tp_transfers, mesh.axis("tp").size))
    stage.peer_copies = allocate_peer_copies("tp peer copies", mesh.axis("tp").size, d.R * d.C, d.dtype, 2, arena);
  if (mesh.axis("pp").first()) stage.inputs = arena.take("tokens", Dtype::kI32, {num_microbatches, d.B, d.T});
  if (mesh.axis("pp").last()) stage.targets = arena.take("tokens", Dtype::kI32, {num_microbatches, d.B, d.T});
  return stage;
}

}  // namespace tri
