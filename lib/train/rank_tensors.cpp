#include "lib/train/rank_tensors.h"

#include <algorithm>

namespace tri {

int microbatches(const Config& config) {
  return config.data.global_batch / (config.data.micro_batch * config.parallel.dp);
}

Plan train_plan(const Config& config, Axis pp) {
  return with_transfers(make_plan(config.parallel.schedule, pp, microbatches(config), config.parallel.chunks), pp,
                        config.parallel.chunks);
}

Plan evaluation_plan(const Config& config, Axis pp, int micros) {
  return with_transfers(forward_only(pp, micros, config.parallel.chunks), pp, config.parallel.chunks);
}

RankTensors allocate_rank(const Config& config, const Mesh& mesh, Arena& arena) {
  const int micros = microbatches(config), chunks = config.parallel.chunks;
  const Plan train = train_plan(config, mesh.pp), evaluation = evaluation_plan(config, mesh.pp, micros);
  std::vector<int> slots, inputs;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    slots.push_back(std::max(max_in_flight(train, chunk), max_in_flight(evaluation, chunk)));
    inputs.push_back(std::max(max_inputs(train, chunk), max_inputs(evaluation, chunk)));
  }
  const StageDims dims = stage_dims(config, mesh);
  RankTensors t;
  t.store = allocate_store(config, mesh, arena);
  t.optimizer = allocate_optimizer(config, t.store.num_tensors, arena);
  t.stage = allocate_stage(config, mesh, slots, micros, arena);
  t.boundaries = allocate_boundaries(mesh.pp, chunks, inputs, dims.Rl, dims.C, dims.dtype, arena);
  if (mesh.pp.last()) {
    t.loss_weight = arena.take("head", Dtype::kF32, {micros});
    t.sample_logits = arena.take("head", dims.dtype, {padded_vocab(config.model)});
  }
  t.sample_token = arena.take("tokens", Dtype::kI32, {1});
  return t;
}

}  // namespace tri
