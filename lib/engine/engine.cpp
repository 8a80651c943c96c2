#include "lib/engine/engine.h"

#include <utility>

#include "kernels/ops.h"
#include "lib/comm/job/job.h"
#include "lib/optim/start_values.h"

namespace tri {
namespace {

// Hooks for the parameters of a store.
class StoreHooks final : public ParameterHooks {
 public:
  explicit StoreHooks(ParameterStore& store) : gradients_(store.gradients), gathers_(store.gathers) {}
  void before_use(const Parameter& parameter) override { gathers_.before_use(parameter); }
  Tensor gradient(const Parameter& parameter) override {
    gathers_.finish_updates();  // which read the gradients of the step before
    return gradients_.gradient(parameter);
  }
  GradientTarget gradient_target(const Parameter& parameter) override {
    gathers_.finish_updates();
    return gradients_.gradient_target(parameter);
  }
  void gradient_ready(const Parameter& parameter) override { gradients_.gradient_ready(parameter); }

 private:
  GradientBuckets& gradients_;
  ParameterGathers& gathers_;
};

// Hooks for constant weights without gradients.
class ConstantWeights final : public ParameterHooks {
 public:
  void before_use(const Parameter&) override {}
  Tensor gradient(const Parameter&) override { return no_gradients(); }
  GradientTarget gradient_target(const Parameter&) override { return {no_gradients(), 0.0f}; }
  void gradient_ready(const Parameter&) override { no_gradients(); }

 private:
  static Tensor no_gradients() {
    TRI_REQUIRE(false, "an engine for inference has no gradients");
    return {};
  }
};

// `store`: null for inference.
std::unique_ptr<ParameterHooks> make_hooks(ParameterStore* store) {
  if (store != nullptr) return std::make_unique<StoreHooks>(*store);
  return std::make_unique<ConstantWeights>();
}

// The factor on the gradient of the summed loss: a step's loss is the mean over its targets.
float loss_scale(int64_t targets) { return targets == 0 ? 0.0f : 1.0f / static_cast<float>(targets); }

int64_t tokens_of_batch(const Config& config) { return int64_t{config.data.global_batch} * config.model.seq_len; }

// The routers' losses are means over all tokens of a step.
float token_share(int64_t tokens) { return 1.0f / static_cast<float>(tokens); }

}  // namespace

Engine::Engine(const RankContext& rank, EngineKind kind, const CacheSize& cache)
    : rank_(rank),
      tensors_(allocate_rank(config(), mesh(), rank.arena, kind, cache)),
      runtime_(rank_, {.tp = tensors_.stage.peer_copies,
                       .dp = tensors_.store.peer_copies,
                       .boundaries = tensors_.boundaries,
                       .expert_flags = tensors_.stage.expert_flags}),
      store_(kind == EngineKind::kTraining ? std::make_unique<ParameterStore>(ParameterStoreContext{
                                                 .config = config(),
                                                 .mesh = mesh(),
                                                 .tensors = tensors_.store,
                                                 .fp8 = tensors_.stage.fp8,
                                                 .num_microbatches = microbatches(config()),
                                                 .device = device(),
                                                 .compute = runtime_.compute(),
                                                 .dp = runtime_.dp(),
                                                 .experts = runtime_.expert_transfers(),
                                                 .sums = {tensors_.optimizer.sumsq, runtime_.update_streams().sums}})
                                           : nullptr),
      hooks_(make_hooks(store_.get())),
      targets_(tokens_of_batch(config())),
      stage_({.config = config(),
              .mesh = mesh(),
              .tensors = tensors_.stage,
              .parameters = parameters(),
              .hooks = *hooks_,
              .compute = runtime_.compute(),
              .tp = runtime_.tp(),
              .splits = overlap_splits_,
              .loss_scale = loss_scale(targets_),
              .cache = cache,
              .cp = runtime_.cp(),
              .experts = runtime_.experts(),
              .expert_windows = runtime_.expert_windows(),
              .token_share = token_share(tokens_of_batch(config()))}),
      executor_({.pp = mesh().axis("pp"),
                 .chunks = config().parallel.chunks,
                 .tensors = tensors_.boundaries,
                 .links = runtime_.links(),
                 .returning = runtime_.returning_links(),
                 .compute = runtime_.compute(),
                 .device = device(),
                 .overlap = config().parallel.overlap_pp ? Overlap::kOn : Overlap::kOff}),
      batch_(tensors_, mesh().axis("pp"), runtime_.compute()) {
  fill_tables();
  device().lend_workspace(tensors_.kernel_workspace);
}

// Waits for all work: it must not use events of store and executor, or memory, that have been freed.
Engine::~Engine() {
  runtime_.synchronize();
  device().lend_workspace({});
}

// Fills the angles of rotary positions and the weights of losses.
void Engine::fill_tables() {
  Stream& compute = runtime_.compute();
  fill_angles(tensors_.stage.work.attention, config().model, {config().model.seq_len, mesh().axis("cp")}, compute);
  if (const Tensor starts = tensors_.stage.document_starts; !starts.empty()) compute.zero(starts);
  if (const Tensor bias = tensors_.stage.experts.bias; !bias.empty()) compute.zero(bias);
  fill_loss_weights();
}

void Engine::fill_loss_weights() {
  if (!mesh().axis("pp").ends_here()) return;
  Stream& compute = runtime_.compute();
  // Ranks of the last stage that process the same samples have the same loss, so only the first one's counts.
  const bool counts = mesh().first_of_replicas() && targets_ > 0;
  const std::vector<float> weights(static_cast<size_t>(microbatches(config())),
                                   counts ? static_cast<float>(1.0 / static_cast<double>(targets_)) : 0.0f);
  compute.copy(tensors_.loss_weight.data, weights.data(), tensors_.loss_weight.bytes());
  compute.synchronize();
}

void Engine::set_batch(int64_t tokens, int64_t targets) {
  TRI_REQUIRE(tokens > 0 && targets >= 0 && targets <= tokens, "{} targets in a batch of {} tokens", targets, tokens);
  stage_.set_token_share(token_share(tokens));
  if (targets == targets_) return;
  targets_ = targets;
  stage_.set_loss_scale(loss_scale(targets));
  fill_loss_weights();
}

void Engine::require_expert_memory() {
  const Tensor shortage = tensors_.stage.experts.shortage;
  if (shortage.empty()) return;
  std::vector<int32_t> found(static_cast<size_t>(shortage.numel()));
  runtime_.compute().copy(found.data(), shortage.data, shortage.bytes());
  runtime_.compute().synchronize();
  RowShortage worst;
  // Routers of later layers have read rows that are NaN.
  const auto keep_worse = [&](const RowShortage& other) {
    if (other.rows > 0 &&
        (worst.rows == 0 || std::pair(-other.layer, other.rows) > std::pair(-worst.layer, worst.rows)))
      worst = other;
  };
  for (int layer = 0; layer < shortage[0]; ++layer) {
    const int32_t* const row = found.data() + layer * kRowShortage;
    keep_worse({config().model.dense_layers + layer, row[0], row[1], row[2], row[3]});
  }
  if (job() != nullptr)
    for (const RowShortage& of_rank : job()->all_gather(worst)) keep_worse(of_rank);
  if (worst.rows > 0) throw Fatal(ExitCode::kUsage, to_string(worst, config()));
}

std::vector<float> Engine::read_floats(Tensor tensor) {
  Stream& compute = runtime_.compute();
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype == Dtype::kF32) {
    compute.copy(values.data(), tensor.data, tensor.bytes());
    compute.synchronize();
    return values;
  }
  std::vector<bf16> stored(values.size());
  compute.copy(stored.data(), tensor.data, tensor.bytes());
  compute.synchronize();
  for (size_t i = 0; i < stored.size(); ++i) values[i] = static_cast<float>(stored[i]);
  return values;
}

ParameterStore& Engine::store() {
  TRI_REQUIRE(store_ != nullptr, "an engine for inference has no parameter store");
  return *store_;
}

const std::vector<std::vector<Parameter>>& Engine::parameters() const {
  return store_ != nullptr ? store_->memory.parameters() : tensors_.weights;
}

void Engine::make_start_values() {
  write_start_values(store().memory, mesh(), config().run.seed, runtime_.compute());
  make_quantized_weights();
}

void Engine::make_quantized_weights() {
  if (!keeps_fp8_weights(config())) return;
  Fp8Layers& fp8 = *stage_.fp8();
  ParameterGathers& gathers = store().gathers;
  if (fp8.has_history()) {
    fp8.begin_quantized_weights();
  } else {
    fp8.begin_weight_scales();
    gathers.cast_weights();
    fp8.make_weight_scales(runtime_.world());
  }
  gathers.cast_weights();
  gathers.publish_weights();
}

}  // namespace tri
