#include "lib/train/trainer.h"

#include <cmath>
#include <cstddef>
#include <optional>

#include "lib/comm/compute_progress.h"
#include "lib/optim/lr.h"
#include "lib/tune/overlap_splits.h"

namespace tri {

static_assert(kNumStepStatistics <= kMaxStepStatistics);
static_assert(offsetof(StepStatistics, loss) == kLossStatistic * sizeof(float));

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

Trainer::Trainer(const TrainerContext& context)
    : engine_({.config = context.config,
               .mesh = context.mesh,
               .job = context.job,
               .device = context.device,
               .arena = context.arena,
               .observer = context.observer}),
      mesh_(engine_.mesh()),
      tensors_(engine_.tensors()),
      runtime_(engine_.runtime()),
      store_(engine_.store()),
      stage_(engine_.stage()),
      statistics_(tensors_.step_statistics.flat(0, kNumStepStatistics)),
      optimizer_({.config = context.config,
                  .store = store_,
                  .tensors = tensors_.optimizer,
                  .sums = tensors_.stage.fp8.slots() > 0 ? tensors_.step_statistics : statistics_,
                  .norm_sq = step_statistic(statistics_, offsetof(StepStatistics, norm_sq)),
                  .groups = runtime_.axis_groups(),
                  .dp = runtime_.dp().collectives(),
                  .world = runtime_.world(),
                  .compute = runtime_.compute()}),
      timeline_(context.device, runtime_.compute(),
                context.config.metrics.ranks_every > 0 ? TimelineDetail::kOn : TimelineDetail::kOff),
      plan_(train_plan(context.config, mesh_.axis("pp"))),
      timing_(context.timing),
      h_told_(context.device, 1),
      h_sums_(context.device, 1),
      h_norm_(context.device, 1) {
  const auto phase_done = [&](const char* name) {
    if (context.startup != nullptr) context.startup->phase_done(name);
  };
  const auto file = [&](const char* name) {
    return context.tuning_dir.empty() ? "" : fmt::format("{}/{}", context.tuning_dir, name);
  };
  runtime_.compute().zero(tensors_.step_statistics);  // those between the statistics and FP8's counts are summed too
  if (stage_.fp8() != nullptr) fp8_.emplace(context.device, *stage_.fp8());
  phase_done("communicators");
  engine_.set_overlap_splits(
      find_overlap_splits(engine_, {.gemms = file("gemm_algorithms.txt"), .splits = file("overlap_splits.txt")}));
  phase_done("searches");
}

// The trainer's events and host memory must outlive the work that still uses them.
Trainer::~Trainer() { runtime_.drain(); }

void Trainer::make_start_values() {
  store_.make_start_values();
  engine_.make_codes();
  has_state_ = true;
}

Result<void> Trainer::state_loaded(const std::string& fp8_history) {
  store_.state_loaded();
  has_state_ = true;
  if (!fp8_) return {};
  if (!fp8_history.empty())
    if (auto loaded = fp8_->load(fp8_history); !loaded) return loaded;
  engine_.make_codes();
  return {};
}

void Trainer::run_plan() {
  store_.begin_step();
  engine_.batch().zero_losses();
  stage_.begin(Stage::Mode::kTrain);
  engine_.executor().run(plan_, stage_);
}

StepResult Trainer::step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         const StepStatistics& told, const std::function<void()>& before_update) {
  TRI_REQUIRE(has_state_, "a step before make_start_values() or state_loaded()");
  Stream& compute = runtime_.compute();
  const DrainOnThrow drain(runtime_);
  if (timing_ == StepTiming::kOn) timeline_.begin();
  engine_.batch().load(inputs, targets);
  *h_told_.data() = told;
  compute.copy(statistics_.data, h_told_.data(), statistics_.bytes());
  run_plan();
  engine_.batch().sum_losses();
  const ComputeProgress update(ComputeKind::kUpdate);
  update.running(compute);
  timeline_.enter(TimeCategory::kOptimizer);
  std::optional<SpanScope> span(std::in_place, compute, SpanKind::kAction, "update");
  Fp8Layers* const fp8 = stage_.fp8();
  if (fp8 != nullptr) fp8->count();
  optimizer_.reduce();
  if (fp8 != nullptr) {
    fp8->reduce(runtime_.world());  // before parameters are gathered, for which it would wait
    fp8_->read_numbers(compute);
  }
  StepResult result{.learning_rate = learning_rate(engine_.config().lr, step)};
  if (before_update) before_update();
  optimizer_.clip();
  if (fp8 != nullptr) {
    fp8->update(tensors_.optimizer.grad_scale);  // the update casts weights with the new scales
    fp8_->read_history(compute);
  }
  optimizer_.update(step, result.learning_rate);
  compute.copy(h_sums_.data(), statistics_.data, statistics_.bytes());
  compute.copy(h_norm_.data(), tensors_.optimizer.norm.data, tensors_.optimizer.norm.bytes());
  span.reset();
  timeline_.end();
  compute.synchronize();  // the step's only wait of the host
  result.timeline = timeline_.take();
  result.pp_transfer_seconds = engine_.executor().fastest_send();
  result.sums = *h_sums_.data();
  result.loss = result.sums.loss;
  result.grad_norm = *h_norm_.data();
  if (fp8_) {
    result.fp8 = fp8_->numbers();
    if (result.finite()) fp8_->finished();
  }
  return result;
}

std::vector<std::string> Trainer::not_finite_names() {
  store_.gradients().sum_local_gradients(true);
  run_plan();
  optimizer_.reduce();
  runtime_.synchronize();
  store_.gradients().sum_local_gradients(false);
  std::vector<std::string> names;
  if (mesh_.axis("pp").last()) {
    const std::vector<float> losses = engine_.read_floats(stage_.head().losses);
    for (size_t m = 0; m < losses.size(); ++m)
      if (!std::isfinite(losses[m])) names.push_back(fmt::format("loss of microbatch {}", m));
  }
  const std::vector<float> local = engine_.read_floats(store_.tensors().local_sumsq),
                           reduced = engine_.read_floats(tensors_.optimizer.sumsq);
  const TensorRun& sharded = store_.tensors().runs.front();
  const auto split = static_cast<size_t>(sharded.sharded.empty() ? 0 : sharded.count);
  for (size_t i = 0; i < local.size(); ++i)
    if (!std::isfinite(local[i]) || (mesh_.axis("dp").size == 1 && i < split && !std::isfinite(reduced[i])))
      names.push_back("gradient of " + store_.memory().tensor_names()[i]);
  return names;
}

}  // namespace tri
