#include "lib/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "lib/comm/compute_progress.h"
#include "lib/optim/lr.h"
#include "lib/tune/overlap_splits.h"

namespace tri {

static_assert(kNumStepStatistics <= kMaxStepStatistics);

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
                  .tp = runtime_.tp().collectives(),
                  .dp = runtime_.dp().collectives(),
                  .embedding = runtime_.embedding(),
                  .world = runtime_.world(),
                  .compute = runtime_.compute()}),
      evaluator_(engine_, step_statistic(statistics_, offsetof(StepStatistics, loss))),
      timeline_(context.device, runtime_.compute(),
                context.config.metrics.ranks_every > 0 ? TimelineDetail::kOn : TimelineDetail::kOff),
      plan_(train_plan(context.config, mesh_.pp)),
      timing_(context.timing),
      h_told_(context.device, 1),
      h_sums_(context.device, 1),
      h_norm_(context.device, 1),
      h_fp8_(context.device,
             std::max<size_t>(1, static_cast<size_t>(tensors_.stage.fp8.slots() * (3 + kNumFp8Counts)))) {
  const auto phase_done = [&](const char* name) {
    if (context.startup != nullptr) context.startup->phase_done(name);
  };
  const auto file = [&](const char* name) {
    return context.tuning_dir.empty() ? "" : fmt::format("{}/{}", context.tuning_dir, name);
  };
  runtime_.compute().zero(tensors_.step_statistics);  // those between the statistics and FP8's counts are summed too
  if (context.config.precision.fp8_guard == Switch::kOn && stage_.fp8() != nullptr) fp8_guard_.emplace(context.config);
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
  engine_.make_codes();
  has_state_ = true;
}

Result<void> Trainer::state_loaded(const std::string& fp8_history) {
  store_.state_loaded();
  has_state_ = true;
  Fp8Layers* const fp8 = stage_.fp8();
  if (fp8 == nullptr) return {};
  if (fp8_history.empty()) {
    engine_.make_codes();
    return {};
  }
  const size_t mark = fp8_history.find(kGuardMark);
  if (fp8_guard_ && mark != std::string::npos) {
    if (auto loaded = fp8_guard_->load(fp8_history.substr(mark + std::string_view(kGuardMark).size())); !loaded)
      return loaded;
    fp8->set_fallen(fp8_guard_->fallen());
  }
  const auto history = history_of_text(fp8_history.substr(0, mark), fp8->tensors().slots());
  if (!history) return history.error();
  fp8->load_history(history.value());
  std::copy(history.value().begin(), history.value().end(), h_fp8_history().begin());
  engine_.make_codes();
  return {};
}

std::string Trainer::fp8_history() const {
  const Fp8Layers* const fp8 = stage_.fp8();
  if (fp8 == nullptr) return "";
  const auto slots = static_cast<size_t>(fp8->tensors().slots());
  const std::string guard = fp8_guard_ ? kGuardMark + fp8_guard_->text() : "";
  return history_text(fp8->kept_history({h_fp8_.data() + (2 + kNumFp8Counts) * slots, slots})) + guard;
}

std::string Trainer::forgotten_layers(const std::string& fp8_history) const {
  const size_t mark = fp8_history.find(kGuardMark);
  if (fp8_guard_ || mark == std::string::npos) return "";
  return Fp8Guard::fallen_of(fp8_history.substr(mark + std::string_view(kGuardMark).size()));
}

std::span<float> Trainer::h_fp8_history() {
  const auto slots = static_cast<size_t>(tensors_.stage.fp8.slots());
  return {h_fp8_.data() + (2 + kNumFp8Counts) * slots, slots};
}

void Trainer::run_plan() {
  store_.begin_step();
  if (mesh_.pp.last()) runtime_.compute().zero(stage_.head().losses);
  stage_.begin(Stage::Mode::kTrain);
  engine_.executor().run(plan_, stage_);
}

StepResult Trainer::step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         const StepStatistics& told, const std::function<void()>& before_update) {
  TRI_REQUIRE(has_state_, "a step before make_start_values() or state_loaded()");
  Stream& compute = runtime_.compute();
  const DrainOnThrow drain(runtime_);
  if (timing_ == StepTiming::kOn) timeline_.begin();
  evaluator_.load_tokens(inputs, targets);
  *h_told_.data() = told;
  compute.copy(statistics_.data, h_told_.data(), statistics_.bytes());
  run_plan();
  evaluator_.sum_losses();
  const ComputeProgress update(ComputeKind::kUpdate);
  update.running(compute);
  timeline_.enter(TimeCategory::kOptimizer);
  std::optional<SpanScope> span(std::in_place, compute, SpanKind::kAction, "update");
  Fp8Layers* const fp8 = stage_.fp8();
  if (fp8 != nullptr) fp8->count();
  optimizer_.reduce();
  if (fp8 != nullptr) {
    fp8->reduce(runtime_.world());  // before parameters are gathered, for which it would wait
    const Fp8Tensors& numbers = fp8->tensors();
    const int64_t slots = numbers.slots();
    compute.copy(h_fp8_.data(), numbers.numbers.data, numbers.numbers.flat(0, 2 * slots).bytes());
    compute.copy(h_fp8_.data() + 2 * slots, numbers.float_counts.data, numbers.float_counts.bytes());
  }
  StepResult result{.learning_rate = learning_rate(engine_.config().lr, step)};
  if (before_update) before_update();
  optimizer_.clip();
  if (fp8 != nullptr) {
    fp8->update(tensors_.optimizer.grad_scale);  // the update casts weights with the new scales
    const Tensor history = fp8->tensors().history();
    compute.copy(h_fp8_history().data(), history.data, history.bytes());
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
  if (fp8 != nullptr) {
    const auto slots = static_cast<size_t>(fp8->tensors().slots());
    result.fp8 = fp8_numbers({h_fp8_.data(), (2 + kNumFp8Counts) * slots}, slots);
    if (!result.finite()) return result;
    fp8->step_was_finite();
    if (fp8_guard_) result.fp8_fell = fp8_guard_->step(result.loss, result.fp8);
    if (!result.fp8_fell.empty()) fp8->set_fallen(fp8_guard_->fallen());
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
