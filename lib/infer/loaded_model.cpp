#include "lib/infer/loaded_model.h"

#include <algorithm>

#include "lib/comm/job.h"
#include "lib/engine/rank_tensors.h"

namespace tri {

// Weights never change, and nothing asks for gradients.
class LoadedModel::Hooks final : public ParameterHooks {
 public:
  void begin_backward(int, int) override { none(); }
  void before_use(const Parameter&) override {}
  Tensor gradient(const Parameter&) override { return none(); }
  GradientTarget gradient_target(const Parameter&) override { return {none(), 0.0f}; }
  void gradient_ready(const Parameter&) override { none(); }

 private:
  static Tensor none() {
    TRI_REQUIRE(false, "a loaded model has no gradients");
    return {};
  }
};

struct LoadedModel::Tensors {
  std::vector<std::vector<Parameter>> parameters;  // [chunk]
  StageTensors stage;
  BoundaryTensors boundaries;
  EvaluatorTensors evaluator;
  Tensor kernel_workspace;

  static Tensors allocate(const Config& config, const Mesh& mesh, Arena& arena);
};

LoadedModel::Tensors LoadedModel::Tensors::allocate(const Config& config, const Mesh& mesh, Arena& arena) {
  const int num_microbatches = microbatches(config), chunks = config.parallel.chunks;
  const Plan plan = evaluation_plan(config, mesh.pp, num_microbatches);
  const StageDims dims = stage_dims(config, mesh);
  Tensors t;
  std::vector<int> slots, inputs;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    slots.push_back(max_in_flight(plan, chunk));
    inputs.push_back(max_inputs(plan, chunk));
    auto& list = t.parameters.emplace_back();
    for (const ParamSpec& spec : chunk_parameters(config, mesh.pp, chunk)) {
      const std::vector<int64_t> shape = spec.local_shape(mesh.tp.size);
      Tensor weight = arena.take("parameters", dims.dtype, {spec.local_numel(mesh.tp.size)});
      weight.dims = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), weight.shape.begin());
      list.push_back({spec, weight, chunk, static_cast<int>(list.size())});
    }
  }
  t.stage = allocate_stage(config, mesh, slots, num_microbatches, arena);
  t.boundaries = allocate_boundaries(mesh.pp, chunks, inputs, dims.Rl, dims.C, dims.dtype, arena);
  t.evaluator.loss = arena.take("head", Dtype::kF32, {1});
  if (mesh.pp.last()) {
    t.evaluator.loss_weight = arena.take("head", Dtype::kF32, {num_microbatches});
    t.evaluator.sample_logits = arena.take("head", dims.dtype, {padded_vocab(config.model)});
  }
  t.evaluator.sample_token = arena.take("tokens", Dtype::kI32, {1});
  if (config.run.device == DeviceChoice::kCuda)
    t.kernel_workspace = arena.take("kernel workspace", Dtype::kI32, {kernel_workspace_bytes(dims) / 4});
  return t;
}

Config forward_config(Config config, int ranks) {
  ParallelConfig& p = config.parallel;
  if (ranks == 1 || ranks % (p.tp * p.pp) != 0) {
    p.tp = p.pp = p.chunks = 1;
    p.schedule = Schedule::k1F1B;
  }
  p.dp = 0;
  p.recompute = Recompute::kFull;            // keeps one layer's activations
  p.dp_transfers = Transfers::kCollectives;  // there are no gradients
  config.run.device = DeviceChoice::kAuto;
  return config;
}

LoadedModel::LoadedModel(const Config& config, const Mesh& mesh, Job* job, Device& device) : device_(device) {
  Arena measuring;
  Tensors::allocate(config, mesh, measuring);
  arena_ = std::make_unique<Arena>(device, measuring.used());
  tensors_ = std::make_unique<Tensors>(Tensors::allocate(config, mesh, *arena_));
  device.lend_workspace(tensors_->kernel_workspace);
  hooks_ = std::make_unique<Hooks>();
  runtime_ = std::make_unique<Runtime>(
      config, mesh, job, device, *arena_,
      Runtime::SharedTensors{.tp = tensors_->stage.exchange, .dp = {}, .boundaries = tensors_->boundaries});
  stage_ = std::make_unique<Stage>(config, mesh, tensors_->stage, tensors_->parameters, *hooks_, runtime_->compute(),
                                   runtime_->tp(), runtime_->row_exchange(), splits_, 1.0f);
  executor_ = std::make_unique<Executor>(mesh.pp, config.parallel.chunks, tensors_->boundaries, runtime_->links(),
                                         runtime_->compute(), device,
                                         config.parallel.overlap_pp ? Overlap::kOn : Overlap::kOff);
  evaluator_ = std::make_unique<Evaluator>(config, mesh, device, *runtime_, *stage_, *executor_, tensors_->evaluator);
}

LoadedModel::~LoadedModel() {
  runtime_->drain();
  device_.lend_workspace({});
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const std::string& checkpoint, const Config& config,
                                                       const Mesh& mesh, Job* job, Device& device) {
  const auto agreed = [&](auto mine) { return job == nullptr ? std::move(mine) : agree(*job, std::move(mine)); };
  auto reader = agreed(CheckpointReader::open(checkpoint));
  if (!reader) return reader.error();
  std::unique_ptr<LoadedModel> model(new LoadedModel(config, mesh, job, device));
  const auto loaded = load_weights(reader.value(), mesh.tp, model->tensors_->parameters, model->runtime_->compute());
  if (auto all = agreed(loaded); !all) return all.error();
  model->evaluator_->initialize();
  return model;
}

}  // namespace tri
