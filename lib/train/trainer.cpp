#include "lib/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "lib/optim/lr.h"
#include "lib/tune/overlap_splits.h"

namespace tri {

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

Trainer::Trainer(const TrainerContext& context)
    : engine_({.config = context.config,
               .mesh = context.mesh,
               .job = context.job,
               .device = context.device,
               .arena = context.arena}),
      mesh_(engine_.mesh()),
      tensors_(engine_.tensors()),
      runtime_(engine_.runtime()),
      store_(engine_.store()),
      stage_(engine_.stage()),
      optimizer_(context.config, store_, tensors_.optimizer,
                 {.tp = runtime_.tp().collectives(),
                  .dp = runtime_.dp().collectives(),
                  .embedding = runtime_.embedding(),
                  .world = runtime_.world()},
                 runtime_.compute()),
      evaluator_(engine_, tensors_.optimizer.stats.flat(kStatLoss, 1)),
      timeline_(context.device, runtime_.compute()),
      plan_(train_plan(context.config, mesh_.pp)),
      timing_(context.timing),
      h_flags_(context.device, kNumStats - kStatStop),
      h_stats_(context.device, kNumStats + 1) {
  const auto phase_done = [&](const char* name) {
    if (context.startup != nullptr) context.startup->phase_done(name);
  };
  const auto file = [&](const char* name) {
    return context.tuning_dir.empty() ? "" : fmt::format("{}/{}", context.tuning_dir, name);
  };
  phase_done("communicators");
  engine_.set_overlap_splits(
      find_overlap_splits(engine_, {.gemms = file("gemm_algorithms.txt"), .splits = file("overlap_splits.txt")}));
  phase_done("searches");
  evaluator_.initialize();
}

// The trainer's events and host memory must outlive the work that still uses them.
Trainer::~Trainer() { runtime_.drain(); }

void Trainer::make_start_values() {
  store_.make_start_values();
  has_state_ = true;
}

void Trainer::state_loaded() {
  store_.state_loaded();
  has_state_ = true;
}

void Trainer::run_plan() {
  store_.begin_step();
  if (mesh_.pp.last()) runtime_.compute().zero(stage_.head().losses);
  stage_.begin(Stage::Mode::kTrain);
  engine_.executor().run(plan_, stage_);
}

StepResult Trainer::step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         RankFlags flags, const std::function<void()>& before_update) {
  TRI_REQUIRE(has_state_, "a step before make_start_values() or state_loaded()");
  Stream& compute = runtime_.compute();
  const DrainOnThrow drain(runtime_);
  if (timing_ == StepTiming::kOn) timeline_.begin();
  evaluator_.load_tokens(inputs, targets);
  h_flags_.data()[kStatStop - kStatStop] = flags.stop ? 1.0f : 0.0f;
  h_flags_.data()[kStatSaved - kStatStop] = flags.saved ? 1.0f : 0.0f;
  h_flags_.data()[kStatFailed - kStatStop] = flags.failed ? 1.0f : 0.0f;
  h_flags_.data()[kStatStopAge - kStatStop] = flags.stop ? flags.stop_age : 0.0f;
  h_flags_.data()[kStatTimeNeeded - kStatStop] = mesh_.world_rank == 0 ? flags.time_needed : 0.0f;
  const Tensor device_flags = tensors_.optimizer.stats.flat(kStatStop, kNumStats - kStatStop);
  compute.copy(device_flags.data, h_flags_.data(), device_flags.bytes());
  run_plan();
  evaluator_.sum_losses();
  timeline_.enter(TimeCategory::kOptimizer);
  optimizer_.reduce();
  StepResult result{.learning_rate = learning_rate(engine_.config().lr, step)};
  if (before_update) before_update();
  optimizer_.update(step, result.learning_rate);
  compute.copy(h_stats_.data(), tensors_.optimizer.stats.data, tensors_.optimizer.stats.bytes());
  compute.copy(h_stats_.data() + kNumStats, tensors_.optimizer.norm.data, tensors_.optimizer.norm.bytes());
  timeline_.end();
  compute.synchronize();  // the step's only wait of the host
  result.timeline = timeline_.take();
  result.pp_transfer_seconds = engine_.executor().fastest_send();
  result.loss = h_stats_.data()[kStatLoss];
  result.grad_norm = h_stats_.data()[kNumStats];
  result.stop = static_cast<int>(h_stats_.data()[kStatStop]);
  result.saved = static_cast<int>(h_stats_.data()[kStatSaved]);
  result.failed = static_cast<int>(h_stats_.data()[kStatFailed]);
  result.stop_age = h_stats_.data()[kStatStopAge] / std::max(1, result.stop);
  result.time_needed = h_stats_.data()[kStatTimeNeeded];
  return result;
}

std::vector<std::string> Trainer::not_finite_names() {
  store_.gradients().sum_local_gradients(true);
  run_plan();
  optimizer_.reduce();
  runtime_.synchronize();
  store_.gradients().sum_local_gradients(false);
  std::vector<std::string> names;
  if (mesh_.pp.last()) {
    const std::vector<float> losses = evaluator_.read(stage_.head().losses);
    for (size_t m = 0; m < losses.size(); ++m)
      if (!std::isfinite(losses[m])) names.push_back(fmt::format("loss of microbatch {}", m));
  }
  const std::vector<float> local = evaluator_.read(store_.tensors().local_sumsq),
                           reduced = evaluator_.read(tensors_.optimizer.sumsq);
  const auto split = static_cast<size_t>(store_.tensors().num_split_tensors);
  for (size_t i = 0; i < local.size(); ++i)
    if (!std::isfinite(local[i]) || (mesh_.dp.size == 1 && i < split && !std::isfinite(reduced[i])))
      names.push_back("gradient of " + store_.memory().tensor_names()[i]);
  return names;
}

}  // namespace tri
