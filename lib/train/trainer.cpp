#include "lib/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "kernels/ops.h"
#include "lib/comm/groups/compute_progress.h"
#include "lib/optim/lr.h"
#include "lib/tune/overlap_splits.h"

namespace tri {

static_assert(kNumStepStatistics <= kMaxStepStatistics);
static_assert(offsetof(StepStatistics, loss) == kLossStatistic * sizeof(float));

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

Trainer::Trainer(const RankContext& rank, const TrainerOptions& options)
    : engine_(rank),
      sizes_(batch_sizes(rank.config)),
      statistics_(engine_.tensors().step_statistics.flat(0, kNumStepStatistics)),
      fp8_(rank.device, engine_.stage().fp8(), runtime().compute()),
      routers_(rank.device, engine_.stage().experts(), static_cast<float>(rank.config.model.router_bias_rate),
               runtime().compute()),
      optimizer_({.config = rank.config,
                  .store = store(),
                  .tensors = engine_.tensors().optimizer,
                  .sums = routers_.empty() ? fp8_.summed(engine_.tensors().step_statistics, statistics_)
                                           : engine_.tensors().step_statistics,
                  .norm_sq = step_statistic(statistics_, offsetof(StepStatistics, norm_sq)),
                  .loss = step_statistic(statistics_, offsetof(StepStatistics, loss)),
                  .groups = runtime().axis_groups(),
                  .dp = runtime().dp().collectives(),
                  .world = runtime().world(),
                  .compute = runtime().compute(),
                  .updates = runtime().update_streams().updates,
                  .matrices = &runtime().matrices(),
                  .device = &rank.device,
                  .experts = runtime().expert_transfers()}),
      timeline_(rank.device, runtime().compute(),
                rank.config.metrics.ranks_every > 0 ? TimelineDetail::kOn : TimelineDetail::kOff),
      timing_(options.timing),
      order_(options.update == UpdateEnd::kNextStep ? UpdateOrder::kOverlapped : UpdateOrder::kNow),
      h_statistics_(rank.device, 1),
      h_sums_(rank.device, 1),
      h_norm_(rank.device, 1) {
  const auto phase_done = [&](const char* name) {
    if (options.startup != nullptr) options.startup->phase_done(name);
  };
  // All slots are summed, including those between the statistics and FP8's counts.
  runtime().compute().zero(engine_.tensors().step_statistics);
  phase_done("communicators");
  engine_.set_overlap_splits(find_overlap_splits(engine_, options.tuning_dir));
  phase_done("searches");
}

// The trainer's events and host memory must outlive the work that uses them.
Trainer::~Trainer() { runtime().synchronize(); }

void Trainer::make_start_values() {
  engine_.make_start_values();
  has_state_ = true;
}

Result<void> Trainer::state_loaded(const std::vector<float>& fp8_history, const std::vector<float>& router_bias) {
  store().gathers.state_loaded();
  has_state_ = true;
  if (auto loaded = fp8_.load(fp8_history); !loaded) return loaded;
  if (auto loaded = routers_.load(router_bias); !loaded) return loaded;
  engine_.make_quantized_weights();
  return {};
}

std::vector<float> Trainer::fp8_history() { return fp8_.saved_history(); }

// A step of another size has another number of microbatches, and thus another plan: the last microbatch starts the
// reductions of the gradients, and the loss is a mean over the targets.
void Trainer::set_batch(int samples, std::optional<int64_t> targets) {
  const int count = microbatches(engine_.config(), samples);
  TRI_REQUIRE(count > 0 && count <= microbatches(engine_.config()), "a step of {} samples", samples);
  auto known = plans_.find(count);
  if (known == plans_.end())
    known = plans_.emplace(count, train_plan(engine_.config(), engine_.mesh().axis("pp"), count)).first;
  plan_ = &known->second;
  store().gradients.set_microbatches(count);
  const int64_t tokens = int64_t{samples} * engine_.config().model.seq_len;
  TRI_REQUIRE(!targets || *targets <= tokens, "{} targets in a step of {} tokens", targets.value_or(0), tokens);
  engine_.set_batch(tokens, targets.value_or(tokens));
}

bool Trainer::must_load_kernels() const {
  return engine_.device().kind() == DeviceKind::kCuda && engine_.config().parallel.pp > 1;
}

// Everything that it writes, a step or an evaluation overwrites before reading it.
void Trainer::load_kernels() {
  TRI_REQUIRE(has_state_, "load_kernels() was called before make_start_values() or state_loaded()");
  const Config& config = engine_.config();
  const RankTensors& tensors = engine_.tensors();
  Stream& compute = runtime().compute();
  Stage& stage = engine_.stage();
  // No other rank writes to the memory of sends.
  std::vector<Tensor> rows;
  for (const auto* rings : {&tensors.boundaries.outputs, &tensors.boundaries.dinputs})
    for (const auto& ring : *rings) rows.insert(rows.end(), ring.begin(), ring.end());
  TRI_REQUIRE(rows.size() >= 3, "a stage with {} buffers to send from", rows.size());
  const Tensor input = rows[0], doutput = rows[1], output = rows[2];
  const int count = std::min(2, microbatches(config));  // the second one adds to the gradients of the first
  std::vector<int32_t> tokens(static_cast<size_t>(count * stage_dims(config, engine_.mesh()).R));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i % static_cast<size_t>(config.model.vocab));
  runtime().synchronize();
  // Routers could choose experts that lack memory for the rows.
  stage.set_expert_choice(Stage::ExpertChoice::kInTurn);
  store().gradients.set_microbatches(count);
  engine_.batch().load(tokens, tokens);

  const auto forward = [&](int chunk, int microbatch) {
    normal_values({.out = input.flat(), .key = 1}, compute);
    stage.forward(chunk, microbatch, input, output);
  };
  const auto train = [&] {
    begin_plan();
    for (int m = 0; m < count; ++m)
      for (int chunk = config.parallel.chunks; chunk-- > 0;) {
        forward(chunk, m);
        normal_values({.out = doutput.flat(), .key = 2, .scale = 1e-3f}, compute);
        stage.backward(chunk, m, input, doutput, output);
        if (!tensors.stage.due.empty()) stage.weight_gradients(chunk, m);
      }
    optimizer_.reduce();
  };
  Fp8Layers* const fp8 = stage.fp8();
  const bool makes_scales = fp8 != nullptr && !fp8->has_history();
  train();
  if (makes_scales) {
    fp8->assume_history(true);
    train();
  }
  // The forward pass of a step may run alongside the update of the step before.
  for (const bool leaves_room : {false, true}) {
    compute.leave_room(leaves_room);
    stage.begin(Stage::Mode::kEvaluate);
    for (int chunk = 0; chunk < config.parallel.chunks; ++chunk) forward(chunk, 0);
  }
  compute.leave_room(false);
  runtime().synchronize();
  if (makes_scales) fp8->assume_history(false);
  stage.set_expert_choice(Stage::ExpertChoice::kRouter);
  store().gradients.set_microbatches(microbatches(config));
}

void Trainer::begin_plan() {
  store().gathers.before_zeroing();
  store().gradients.begin_step();
  engine_.batch().zero_losses();
  engine_.stage().begin(Stage::Mode::kTrain);
}

void Trainer::run_plan() {
  begin_plan();
  engine_.executor().run(*plan_, engine_.stage());
}

StepResult Trainer::step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         const StepStatistics& local, const std::function<void()>& before_update, StepLimits limits) {
  const int samples = engine_.config().data.global_batch;
  const int64_t length = engine_.config().model.seq_len;
  set_batch(samples, std::nullopt);
  return run_step(StepPosition{.step = step, .tokens = step * samples * length, .step_tokens = samples * length},
                  inputs, targets, {}, local, before_update, limits);
}

StepResult Trainer::step(const StepPlace& place, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         const StepStatistics& local, const std::function<void()>& before_update, StepLimits limits) {
  set_batch(sizes_.at(place.first_sample), place.targets);
  if (place.targets == 0) limits = {.loss = -1, .grad_norm = -1};  // which any step exceeds
  return run_step(step_position(engine_.config(), place.step, place.first_sample), inputs, targets,
                  place.document_starts, local, before_update, limits);
}

StepResult Trainer::run_step(const StepPosition& position, std::span<const int32_t> inputs,
                             std::span<const int32_t> targets, std::span<const int32_t> document_starts,
                             const StepStatistics& local, const std::function<void()>& before_update,
                             StepLimits limits) {
  TRI_REQUIRE(has_state_, "step() was called before make_start_values() or state_loaded()");
  const OptimizerTensors& tensors = engine_.tensors().optimizer;
  Stream& compute = runtime().compute();
  if (timing_ == StepTiming::kOn) timeline_.begin();
  engine_.batch().load(inputs, targets, document_starts);
  *h_statistics_.data() = local;
  compute.copy(statistics_.data, h_statistics_.data(), statistics_.bytes());
  run_plan();
  engine_.batch().sum_losses();
  const ComputeProgress update(ComputeKind::kUpdate);
  update.running(compute);
  timeline_.enter(TimeCategory::kOptimizer);
  StepResult result{.learning_rate = learning_rate(engine_.config().lr, position)};
  {
    const SpanScope span(compute, SpanKind::kAction, "update");
    fp8_.count();
    optimizer_.reduce();
    fp8_.reduce(runtime().world());  // before the gathers of parameters, for which it would wait otherwise
    if (before_update) before_update();
    optimizer_.clip(limits);
    routers_.update(tensors.grad_scale);
    fp8_.update(tensors.grad_scale);  // the update casts weights with the new scales
    compute.copy(h_sums_.data(), statistics_.data, statistics_.bytes());
    compute.copy(h_norm_.data(), tensors.norm.data, tensors.norm.bytes());
    optimizer_.update(position.step, result.learning_rate, order_);
  }
  timeline_.end();
  compute.synchronize();  // the host waits only here in a step
  result.timeline = timeline_.take();
  result.pp_transfer_seconds = engine_.executor().fastest_send();
  result.sums = *h_sums_.data();
  result.loss = result.sums.loss;
  result.grad_norm = *h_norm_.data();
  result.is_spike = result.finite() && limits.exceeded_by(result.sums.loss, *h_norm_.data());
  result.fp8 = fp8_.numbers();
  result.routers = routers_.numbers();
  if (!result.finite()) engine_.require_expert_memory();
  if (result.finite() && !result.is_spike) fp8_.finished();
  return result;
}

std::vector<std::string> Trainer::not_finite_names() {
  store().gradients.sum_local_gradients(true);
  run_plan();
  optimizer_.reduce();
  runtime().synchronize();
  store().gradients.sum_local_gradients(false);
  std::vector<std::string> names;
  const Mesh& mesh = engine_.mesh();
  if (mesh.axis("pp").ends_here()) {
    const std::vector<float> losses = engine_.read_floats(engine_.stage().head().losses);
    for (size_t m = 0; m < losses.size(); ++m)
      if (!std::isfinite(losses[m])) names.push_back(fmt::format("loss of microbatch {}", m));
  }
  const std::vector<float> local = engine_.read_floats(store().memory.tensors().local_sumsq),
                           reduced = engine_.read_floats(engine_.tensors().optimizer.sumsq);
  // If dp has one rank, no other rank adds to the gradient of a tensor that is sharded over tp.
  const auto is_own = [&](size_t i) {
    return runtime().dp().size() == 1 && store().memory.tensors().sharded(static_cast<int>(i)).contains("tp");
  };
  for (size_t i = 0; i < local.size(); ++i)
    if (!std::isfinite(local[i]) || (is_own(i) && !std::isfinite(reduced[i])))
      names.push_back("gradient of " + store().memory.tensor_names()[i]);
  return names;
}

}  // namespace tri
