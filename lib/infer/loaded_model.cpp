#include "lib/infer/loaded_model.h"

#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/job.h"
#include "lib/config/axis_fields.h"

namespace tri {

Config forward_config(Config config, int ranks) {
  ParallelConfig& p = config.parallel;
  if (ranks == 1 || ranks % ranks_along(AxisSet::outside({"dp"}), p) != 0) {
    for (const AxisField& field : kAxisFields) p.*field.size = 1;
    p.chunks = 1;
    p.schedule = Schedule::k1F1B;
  }
  p.dp = 0;
  p.recompute = Recompute::kFull;            // stores one layer's activations
  p.dp_transfers = Transfers::kCollectives;  // there are no gradients
  config.run.device = DeviceChoice::kAuto;
  config.precision.gemm = GemmFormat::kCompute;  // FP8's scales belong to a run
  return config;
}

LoadedModel::LoadedModel(const Config& config, const Mesh& mesh, Job& job, Device& device)
    : arena_(device, rank_bytes(config, mesh, device, EngineKind::kInference)),
      engine_({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena_}, EngineKind::kInference),
      evaluator_(engine_) {}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const OpenedCheckpoint& checkpoint, const Config& config,
                                                       const Mesh& mesh, Job& job, Device& device) {
  const PhaseScope phase(RunPhase::kLoad);
  std::unique_ptr<LoadedModel> model(new LoadedModel(config, mesh, job, device));
  const auto loaded =
      load_weights(checkpoint, mesh, model->engine_.parameters(), model->engine_.runtime().compute(), job);
  if (!loaded) return loaded.error();
  return model;
}

}  // namespace tri
