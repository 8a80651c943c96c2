#include "lib/engine/rank_tensors.h"

#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/workspace.h"
#include "lib/config/batch_sizes.h"
#include "lib/model/layer_division.h"

namespace tri {

Tensor take_kernel_workspace(const Config& config, const Mesh& mesh, Arena& arena) {
  const StageDims d = stage_dims(config, mesh);
  const DeviceKind kind = config.run.device == DeviceChoice::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  int64_t bytes = 0;
  for (const LayerSpec& layer : layers_of_model(config).kinds) {
    WorkspaceDims dims = layer.kernel_workspace(d.tp);
    dims.dtype = d.dtype;
    dims.attention = config.model.attention;
    dims.batch = d.B;
    dims.seq_len = d.T;
    if (d.chunks.cp.size > 1) dims.key_len = static_cast<int>(d.chunks.seq_len);
    bytes = std::max(bytes, arena.device() != nullptr ? arena.device()->workspace_bytes(dims)
                                                      : workspace_bytes(kind, dims, arena.absent_gpu()));
  }
  return bytes == 0 ? Tensor() : arena.take("kernel workspace", Dtype::kI32, {bytes / 4});
}

int microbatches(const Config& config, int samples) { return samples / (config.data.micro_batch * config.parallel.dp); }

int microbatches(const Config& config) { return microbatches(config, config.data.global_batch); }

Plan train_plan(const Config& config, Axis pp, int num_microbatches) {
  const ParallelConfig& p = config.parallel;
  return with_transfers(make_plan(p.schedule, pp, num_microbatches, p.chunks, plan_costs(config)), pp, p.chunks);
}

Plan evaluation_plan(const Config& config, Axis pp, int num_microbatches) {
  return with_transfers(forward_only(pp, num_microbatches, config.parallel.chunks), pp, config.parallel.chunks);
}

namespace {

// Allocates weights without gradients or optimizer state.
std::vector<std::vector<Parameter>> allocate_weights(const Config& config, const Mesh& mesh, Arena& arena) {
  std::vector<std::vector<Parameter>> chunks;
  for (int chunk = 0; chunk < config.parallel.chunks; ++chunk) {
    auto& parameters = chunks.emplace_back();
    for (const ParamSpec& spec : chunk_parameters(config, mesh.axis("pp"), chunk)) {
      const std::vector<int64_t> shape = spec.local_shape(mesh);
      Tensor weight = arena.take("parameters", config.precision.compute, {spec.local_numel(mesh)});
      weight.dims = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), weight.shape.begin());
      parameters.push_back({spec, weight, chunk, static_cast<int>(parameters.size())});
    }
  }
  return chunks;
}

}  // namespace

RankTensors allocate_rank(const Config& config, const Mesh& mesh, Arena& arena, EngineKind kind,
                          const CacheSize& cache) {
  const bool training = kind == EngineKind::kTraining;
  const int num_microbatches = microbatches(config), chunks = config.parallel.chunks;
  std::vector<Plan> plans{evaluation_plan(config, mesh.axis("pp"), num_microbatches)};  // every plan that will run
  if (training) plans.push_back(train_plan(config, mesh.axis("pp"), num_microbatches));
  if (const BatchSizes sizes = batch_sizes(config); training && !sizes.is_constant())
    for (const BatchSizes::Phase& phase : sizes.phases())
      plans.push_back(train_plan(config, mesh.axis("pp"), std::max(1, microbatches(config, phase.size))));
  std::vector<int> slots(static_cast<size_t>(chunks), 0), inputs = slots, due = slots;  // [chunk]
  for (const Plan& plan : plans)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const auto c = static_cast<size_t>(chunk);
      slots[c] = std::max(slots[c], max_in_flight(plan, chunk));
      inputs[c] = std::max(inputs[c], max_inputs(plan, mesh.axis("pp"), chunk));
      due[c] = std::max(due[c], max_weights_due(plan, chunk));
    }
  const StageDims dims = stage_dims(config, mesh, cache);
  RankTensors t;
  const int64_t expert_layers = tri::expert_layers(config.model);
  const int64_t router_totals = expert_layers * (config.model.experts + MoeStatistics::kLosses);
  if (training) {
    t.store = allocate_store(config, mesh, arena);
    t.optimizer = allocate_optimizer(config, mesh, t.store, arena);
    t.step_statistics = arena.take("optimizer tables", Dtype::kF32,
                                   {kMaxStepStatistics + Fp8Slots(config).count() * kNumFp8Counts + router_totals});
    t.loss = t.step_statistics.flat(kLossStatistic, 1);
  } else {
    t.weights = allocate_weights(config, mesh, arena);
    t.loss = arena.take("head", Dtype::kF32, {1});
  }
  if (!training || !splits_backward(config.parallel.schedule)) due.clear();
  t.stage = allocate_stage(config, mesh, slots, num_microbatches, arena, cache, due);
  if (training && t.stage.fp8.slots() > 0)
    t.stage.fp8.float_counts = t.step_statistics.flat(kMaxStepStatistics, t.stage.fp8.slots() * kNumFp8Counts);
  if (training && expert_layers > 0)
    t.stage.experts.totals = t.step_statistics.flat(t.step_statistics.numel() - router_totals, router_totals)
                                 .view({expert_layers, config.model.experts + MoeStatistics::kLosses});
  t.boundaries = allocate_boundaries(mesh.axis("pp"), chunks, inputs, dims.Rl, dims.C, dims.dtype, arena);
  if (mesh.axis("pp").ends_here()) {
    t.loss_weight = arena.take("head", Dtype::kF32, {num_microbatches});
    const int64_t samples = cache.sequences == 0 ? 1 : round_up(cache.sequences, dims.tp);
    t.sample_logits = arena.take("head", dims.dtype, {samples * padded_vocab(config.model)});
  }
  t.kernel_workspace = take_kernel_workspace(config, mesh, arena);
  t.sample_tokens = arena.take("tokens", Dtype::kI32, {std::max(1, cache.sequences)});
  return t;
}

int64_t rank_bytes(const Config& config, const Mesh& mesh, Device& device, EngineKind kind, const CacheSize& cache) {
  Arena measuring(device);
  allocate_rank(config, mesh, measuring, kind, cache);
  return measuring.used();
}

int64_t room_for_arena(DeviceKind kind, int64_t free, int node_size) {
  constexpr int64_t kLeast = int64_t{2} << 30;
  if (kind == DeviceKind::kCpu) return free / 2 / node_size;
  return std::max<int64_t>(0, free - std::max(kLeast, free / 25));
}

Recompute least_recompute(const Config& config, const Mesh& mesh, int64_t available, const GpuProperties& gpu) {
  Config tried = config;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective}) {
    tried.parallel.recompute = recompute;
    Arena measuring(gpu);
    allocate_rank(tried, mesh, measuring);
    if (measuring.used() <= available) return recompute;
  }
  return Recompute::kFull;
}

}  // namespace tri
