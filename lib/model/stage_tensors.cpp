#include "lib/model/stage_tensors.h"

#include "kernels/peer_rows.h"
#include "lib/comm/peer/windows.h"
#include "lib/model/layer_division.h"
#include "lib/schedule/plan.h"

namespace tri {
namespace {

class Allocator {
 public:
  Allocator(const Config& config, const Mesh& mesh, Arena& arena, const CacheSize& cache)
      : config_(config),
        layers_(layers_of_model(config)),
        tp_(mesh.axis("tp")),
        d_(stage_dims(config, mesh, cache)),
        cache_(cache),
        arena_(arena) {}

  // Returns the tensors of a layer except `input`: the saved ones or, for `full` recompute, those that all layers
  // share.
  LayerTensors layer(const std::string& name, const LayerSpec& spec) {
    const Recompute recompute = config_.parallel.recompute;
    const Dtype read = spec.fp8 ? Dtype::kE4M3 : d_.dtype;  // of tensors that only GEMMs read
    LayerTensors t;
    t.norms.resize(spec.norms.size());
    for (NormTensors& norm : t.norms) {
      if (config_.model.norm == Norm::kLayerNorm) norm.mean = arena_.take(name, Dtype::kF32, {d_.Rl});
      norm.rstd = arena_.take(name, Dtype::kF32, {d_.Rl});
    }
    if (recompute == Recompute::kNone || recompute == Recompute::kFull)
      for (const Branch branch : kBranches) {
        const Branch first = spec.reads_with(branch);
        const int64_t rows = spec.is_local(branch) && recompute == Recompute::kNone ? d_.Rl : d_.R;
        const Dtype dtype = spec.is_local(branch) ? d_.dtype : read;  // a router reads more than FP8
        t.normed[static_cast<size_t>(branch)] =
            first == branch ? arena_.take(name, dtype, {rows, d_.C}) : t.normed_for(first);
      }
    if (spec.has_middle()) t.middle = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
    for (const Branch branch : kBranches)
      if (spec.norm_after(branch) != LayerSpec::kNoNorm)
        t.outputs[static_cast<size_t>(branch)] = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
    for (const Branch branch : kBranches)
      spec.visit(branch, [&](const auto& kind) { allocate_tensors(kind, {config_, d_, spec.fp8, name, arena_}, t); });
    return t;
  }

  MicrobatchTensors microbatch(LayerRange layers, bool last_virtual_stage) {
    const std::string name = "activations in flight";
    MicrobatchTensors m;
    for (int i = 0; i < layers.count; ++i) {
      LayerTensors t;
      const LayerSpec& spec = layers_[layers.first + i];
      if (config_.parallel.recompute != Recompute::kFull)
        t = layer(name, spec);
      else if (spec.has_experts() && config_.model.aux_loss > 0)
        t.moe.all_counts = arena_.take(name, Dtype::kF32, {spec.moe.experts});
      if (i > 0) t.input = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
      m.layers.push_back(t);
    }
    if (last_virtual_stage) m.output = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
    return m;
  }

  LayerWorkspace workspace() {
    const std::string name = "workspace";
    // All layers share the workspace, so the sizes that it depends on must be equal.
    LayerSpec spec = layers_[0];
    for (const LayerSpec& other : layers_.kinds) {
      TRI_REQUIRE(other.same_sizes(spec), "layers that share a workspace have different sizes");
      spec.fp8 = spec.fp8 && other.fp8;  // tensors of the compute type are larger
    }
    LayerWorkspace w;
    w.partial = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.normed = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.dstream = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.dnormed = arena_.take(name, d_.dtype, {d_.R, d_.C});
    w.dbranch = spec.output_norms() > 0 ? arena_.take(name, d_.dtype, {d_.R, d_.C}) : w.dstream;
    if (spec.adds_two_biases()) w.bias = arena_.take(name, d_.dtype, {d_.C});
    if (spec.output_norms() > 0) w.branch = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
    if (any_fp8_layer(config_)) w.fp8 = allocate_fp8_workspace(config_, spec, d_, arena_);
    // Attention, and the kinds of MLP that the model has.
    std::vector<Branch> branches(kBranches.begin(), kBranches.end());
    for (const bool experts : {false, true}) {
      const auto one = std::ranges::find(layers_.kinds, experts, &LayerSpec::has_experts);
      if (one == layers_.kinds.end()) continue;
      spec.moe = one->moe;
      for (const Branch branch : branches)
        spec.visit(branch, [&](const auto& kind) {
          allocate_workspace(kind, {config_, d_, spec.fp8, name, arena_}, w);
        });
      if (config_.parallel.recompute == Recompute::kFull) {
        if (branches.size() == kBranches.size())
          w.recomputed = layer(name, spec);
        else
          allocate_tensors(spec.moe, {config_, d_, spec.fp8, name, arena_}, w.recomputed);
      }
      branches = {Branch::kMlp};
    }
    return w;
  }

  std::vector<DueLayer> due(LayerRange layers, const LayerWorkspace& work) {
    const std::string name = "weight gradients due";
    const Recompute recompute = config_.parallel.recompute;
    std::vector<DueLayer> all;
    for (int i = layers.first; i < layers.first + layers.count; ++i) {
      const LayerSpec& spec = layers_[i];
      DueLayer due{.inputs = {}, .work = work, .dbranch = {}};
      LayerTensors& inputs = recompute == Recompute::kFull ? due.work.recomputed : due.inputs;
      for (const Branch branch : kBranches) {
        const auto b = static_cast<size_t>(branch);
        const bool local = spec.is_local(branch), fp8 = spec.fp8 && !local;
        const int64_t rows = local ? d_.Rl : d_.R;
        const Branch first = spec.reads_with(branch);
        if (recompute != Recompute::kNone)
          inputs.normed[b] = first == branch ? arena_.take(name, fp8 ? Dtype::kE4M3 : d_.dtype, {rows, d_.C})
                                             : inputs.normed_for(first);
        const bool shares = !spec.has_middle() && branch != kBranches.front();
        if (shares)
          due.dbranch[b] = due.dbranch[static_cast<size_t>(kBranches.front())];
        else if (fp8)
          due.dbranch[b] = arena_.take(name, config_.precision.fp8_gradients, {d_.C, d_.R});
        else if (!local || (!spec.fp8 && spec.moe.shared_hidden > 0))  // of experts, only a shared one's fc2 reads it
          due.dbranch[b] = arena_.take(name, d_.dtype, {d_.R, d_.C});
        spec.visit(branch, [&](const auto& kind) {
          allocate_due(kind, {config_, d_, spec.fp8, name, arena_}, inputs, due.work);
        });
      }
      all.push_back(std::move(due));
    }
    return all;
  }

  HeadTensors head(int num_microbatches) {
    HeadTensors h;
    if (config_.model.norm == Norm::kLayerNorm) h.mean = arena_.take("head", Dtype::kF32, {d_.Rl});
    h.rstd = arena_.take("head", Dtype::kF32, {d_.Rl});
    h.logits = arena_.take("head", d_.dtype, {d_.R, d_.Vl});
    if (tp_.size > 1 || cache_.sequences > 0) h.stats = arena_.take("head", Dtype::kF32, {tp_.size, d_.R, 3});
    h.losses = arena_.take("head", Dtype::kF32, {num_microbatches});
    return h;
  }

  CachedRowTensors cached_rows(const Mesh& mesh) {
    const std::string name = "workspace";
    CachedRowTensors t;
    t.sequences = arena_.take(name, Dtype::kI32, {d_.R});
    t.positions = arena_.take(name, Dtype::kI32, {d_.R});
    const AttentionSpec a = layers_[0].attention;
    if (a.rope) t.angles.global = arena_.take(name, Dtype::kF32, {d_.R, a.head_dim / 2, 2});
    if (config_.model.rope_theta_local > 0) t.angles.local = arena_.take(name, Dtype::kF32, {d_.R, a.head_dim / 2, 2});
    if (mesh.axis("pp").first() && config_.model.position == Position::kLearned)
      t.position_rows = arena_.take(name, d_.dtype, {d_.Rl, d_.C});
    for (int chunk = 0; chunk < config_.parallel.chunks; ++chunk) {
      const LayerRange layers = layers_of(config_, mesh.axis("pp"), chunk);
      auto& caches = t.layers.emplace_back();
      for (int i = 0; i < layers.count; ++i)
        caches.push_back(allocate_cache(layers_[layers.first + i].attention, cache_, d_, arena_));
    }
    return t;
  }

 private:
  const Config& config_;
  const Layers layers_;
  const Axis tp_;
  const StageDims d_;
  const CacheSize cache_;
  Arena& arena_;
};

}  // namespace

bool resets_positions(const Config& config) {
  return config.data.document_mask && config.data.reset_positions != AutoFlag::kFalse;
}
bool keeps_activated(Recompute recompute) { return recompute == Recompute::kNone || recompute == Recompute::kNorms; }

LayerTensors with_workspace(LayerTensors t, const LayerWorkspace& work, const LayerSpec& layer) {
  for (const Branch branch : kBranches)
    if (Tensor& rows = t.normed[static_cast<size_t>(branch)]; rows.empty())
      rows = layer.fp8 && !layer.is_local(branch) ? work.fp8.normed : work.normed;
  if (layer.has_experts())
    t.moe = with_workspace(t.moe, work.moe, layer.fp8);
  else
    t.mlp = with_workspace(t.mlp, work.mlp, layer.fp8);
  return t;
}

LayerTensors recomputed_tensors(const LayerWorkspace& work, const LayerSpec& layer) {
  LayerTensors t = work.recomputed;
  TRI_REQUIRE(layer.fp8 || !is_fp8(t.normed[0].dtype),
              "a layer of another format was given the memory of an FP8 layer");
  if (!layer.fp8) return t;
  for (const Branch branch : kBranches) {
    Tensor& rows = t.normed[static_cast<size_t>(branch)];
    if (!layer.is_local(branch))
      rows.dtype = Dtype::kE4M3;
    else if (is_fp8(rows.dtype))  // the memory of a dense layer
      rows = work.normed;
  }
  if (layer.has_experts()) {
    t.moe.rows.dtype = Dtype::kE4M3;
    t.moe = with_workspace(t.moe, work.moe, layer.fp8);
  } else {
    t.mlp = with_workspace(t.mlp, work.mlp, layer.fp8);
  }
  return t;
}

StageDims stage_dims(const Config& config, const Mesh& mesh, const CacheSize& cache) {
  const ModelConfig& m = config.model;
  StageDims d{};
  d.tp = mesh.axis("tp").size;
  d.B = config.data.micro_batch;
  d.chunks = {m.seq_len, mesh.axis("cp")};
  d.T = static_cast<int>(d.chunks.local_len());
  d.C = m.hidden;
  d.Vl = static_cast<int>(padded_vocab(m) / d.tp);
  d.R = cache.sequences > 0 ? cache.rows : int64_t{d.B} * d.T;
  d.Rl = d.R / d.tp;
  d.dtype = config.precision.compute;
  return d;
}

StageTensors allocate_stage(const Config& config, const Mesh& mesh, const std::vector<int>& slots, int num_microbatches,
                            Arena& arena, const CacheSize& cache, const std::vector<int>& due) {
  TRI_REQUIRE(config.parallel.recompute != Recompute::kAuto, "parallel.recompute: auto has not been resolved");
  if (cache.sequences > 0) {
    TRI_REQUIRE(cache.rows > 0 && cache.rows % mesh.axis("tp").size == 0, "{} rows for {} tp ranks", cache.rows,
                mesh.axis("tp").size);
    TRI_REQUIRE(config.data.micro_batch == 1 && num_microbatches == 1 &&
                    config.parallel.recompute == Recompute::kFull && !any_fp8_layer(config) &&
                    !config.data.document_mask,
                "passes over cached sequences need one microbatch of one sequence, full recompute, and neither an FP8 "
                "layer nor a document mask");
  }
  Allocator allocator(config, mesh, arena, cache);
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
  for (int chunk = 0; chunk < static_cast<int>(due.size()); ++chunk) {
    auto& of_chunk = stage.due.emplace_back();
    for (int slot = 0; slot < due[static_cast<size_t>(chunk)]; ++slot)
      of_chunk.push_back(allocator.due(layers_of(config, mesh.axis("pp"), chunk), stage.work));
  }
  if (mesh.axis("pp").ends_here()) stage.head = allocator.head(num_microbatches);
  if (cache.sequences > 0) stage.cached = allocator.cached_rows(mesh);
  const StageDims d = stage_dims(config, mesh, cache);
  // Even if router_bias_rate is 0: a checkpoint may have biases, which the choice of experts then keeps.
  if (config.model.experts > 0 && config.model.router == Router::kSigmoid)
    stage.experts.bias = arena.take("workspace", Dtype::kF32, {expert_layers(config.model), config.model.experts});
  if (ep_by_copies(config)) {
    stage.experts.shortage = arena.take("workspace", Dtype::kI32, {expert_layers(config.model), kRowShortage});
    stage.expert_flags = arena.take("workspace", Dtype::kI32, {PeerWindows::kFlagRows, config.parallel.ep});
  }
  if (any_fp8_layer(config)) stage.fp8 = allocate_fp8(config, mesh, arena);
  if (by_peer_copies(config.parallel.tp_transfers, mesh.axis("tp").size))
    stage.peer_copies = allocate_peer_copies("tp peer copies", mesh.axis("tp").size, d.R * d.C, d.dtype, 2, arena);
  const auto tokens = {int64_t{num_microbatches}, int64_t{d.B}, d.R / d.B};
  if (mesh.axis("pp").first()) stage.inputs = arena.take("tokens", Dtype::kI32, tokens);
  if (mesh.axis("pp").ends_here()) stage.targets = arena.take("tokens", Dtype::kI32, tokens);
  if (config.data.document_mask)
    stage.document_starts =
        arena.take("tokens", Dtype::kI32, {int64_t{num_microbatches}, int64_t{d.B}, d.chunks.seq_len});
  if (resets_positions(config) && mesh.axis("pp").first() && config.model.position == Position::kLearned)
    stage.position_rows = arena.take("workspace", d.dtype, {d.Rl, d.C});
  return stage;
}

}  // namespace tri
