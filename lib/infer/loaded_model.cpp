#include "lib/infer/loaded_model.h"

#include <algorithm>

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/dims.h"
#include "lib/checkpoint/search.h"
#include "lib/comm/job/job.h"
#include "lib/config/axis_fields.h"
#include "lib/config/layer_counts.h"

namespace tri {

Config forward_config(Config config, int ranks) {
  ParallelConfig& p = config.parallel;
  if (ranks == 1 || ranks % ranks_along(AxisSet::outside(kSampleAxes), p) != 0) {
    for (const AxisField& field : kAxisFields) p.*field.size = 1;
    p.chunks = 1;
    p.schedule = Schedule::k1F1B;
    p.layers_per_chunk = kEvenLayers;
  }
  p.dp = 0;
  p.ep = 1;
  p.recompute = Recompute::kFull;            // stores one layer's activations
  p.dp_transfers = Transfers::kCollectives;  // there are no gradients
  config.run.device = DeviceChoice::kAuto;
  config.data.batch_ramp.clear();  // batches have data.global_batch samples, the largest of the ramp
  config.run.tokens = 0;           // run.steps stays what it was with the batches of the run
  if (!config.data.stages.empty()) config.data.stages.back().until_tokens = 0;  // no steps count the stages' tokens
  config.precision.gemm = GemmFormat::kCompute;                                 // FP8's scales belong to a run
  return config;
}

Result<void> use_cache(Config& config, int64_t longest, int ranks) {
  ParallelConfig& p = config.parallel;
  if (config.precision.gemm == GemmFormat::kFp8)
    return usage_error("precision.gemm: fp8: text is generated and scored without FP8 GEMMs; remove the override");
  if (p.ep > 1)
    return usage_error(
        "parallel.ep: {}: text is generated and scored with all experts on each rank; set parallel.ep to 1", p.ep);
  p.cp = 1;  // a pass holds tokens of several texts at any positions, so its rows are not divided: cp ranks join dp
  config.model.seq_len = static_cast<int>(std::min<int64_t>(config.model.seq_len, round_up(longest, p.tp)));
  if (config.model.window > config.model.seq_len) fit_window(config.model);
  config.data.document_mask = false;  // a text is one document
  config.data.reset_positions = AutoFlag::kAuto;
  config.data.micro_batch = 1;
  config.data.global_batch = std::max(1, static_cast<int>(ranks / ranks_along(AxisSet::outside(kSampleAxes), p)));
  p.recompute = Recompute::kFull;
  p.tp_transfers = Transfers::kCollectives;  // few rows at a time
  p.pp_transfers = PpTransfers::kMessages;
  return {};
}

CacheSize cache_size(const Config& config, int sequences, int64_t rows) {
  return {.sequences = sequences, .rows = round_up(std::max<int64_t>(sequences, rows), config.parallel.tp)};
}

LoadedModel::LoadedModel(const Config& config, const Mesh& mesh, Job& job, Device& device, const CacheSize& cache)
    : arena_(device, rank_bytes(config, mesh, device, EngineKind::kInference, cache)),
      engine_({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena_}, EngineKind::kInference,
              cache) {
  if (cache.sequences > 0)
    text_.emplace(engine_, cache);
  else
    evaluator_.emplace(engine_);
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const OpenedCheckpoint& checkpoint, const Config& config,
                                                       const Mesh& mesh, Job& job, Device& device,
                                                       const CacheSize& cache) {
  const PhaseScope phase(RunPhase::kLoad);
  std::unique_ptr<LoadedModel> model(new LoadedModel(config, mesh, job, device, cache));
  const auto loaded =
      load_weights(checkpoint, mesh, model->engine_.parameters(), model->engine_.runtime().compute(), job);
  if (!loaded) return loaded.error();
  // Like its weights, rank 0 reads the routers' biases.
  const auto bias =
      job.broadcast(checkpoint.manifest ? router_bias_of(checkpoint.manifest->info) : std::vector<float>{});
  Engine& engine = model->engine_;
  if (auto read = load_router_bias(bias, engine.stage().experts().bias, engine.runtime().compute()); !read)
    return file_error("{}: {}", checkpoint.folder, read.error().message);
  return model;
}

}  // namespace tri
