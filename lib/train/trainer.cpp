#include "lib/train/trainer.h"

#include <cmath>
#include <exception>

#include "kernels/ops.h"
#include "lib/optim/lr.h"
#include "lib/tune/overlap_splits.h"

namespace tri {

namespace {

// A step that throws must not leave work behind that still reads what its caller lent.
class DrainOnThrow {
 public:
  explicit DrainOnThrow(Runtime& runtime) : runtime_(runtime), exceptions_(std::uncaught_exceptions()) {}
  ~DrainOnThrow() {
    if (std::uncaught_exceptions() > exceptions_) runtime_.drain();
  }

 private:
  Runtime& runtime_;
  const int exceptions_;
};

}  // namespace

static_assert(kNumStepStatistics <= kMaxStepStatistics);

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

Trainer::Trainer(const Config& config, const Mesh& mesh, Job* job, Device& device, Arena& arena, StartupClock* startup,
                 const std::string& tuning_dir)
    : config_(config),
      mesh_(mesh),
      tensors_(allocate_rank(config, mesh, arena)),
      statistics_(tensors_.step_statistics.flat(0, kNumStepStatistics)),
      runtime_(config, mesh, job, device, arena,
               {.tp = tensors_.stage.exchange, .dp = tensors_.store.exchange, .boundaries = tensors_.boundaries}),
      store_({.config = config,
              .mesh = mesh,
              .tensors = tensors_.store,
              .num_microbatches = microbatches(config),
              .device = device,
              .compute = runtime_.compute(),
              .dp = runtime_.dp(),
              .exchange = runtime_.dp_exchange()}),
      stage_(config, mesh, tensors_.stage, store_.parameters(), store_, runtime_.compute(), runtime_.tp(),
             runtime_.row_exchange(), splits_,
             1.0f / (static_cast<float>(config.data.global_batch) * static_cast<float>(config.model.seq_len))),
      executor_(mesh.pp, config.parallel.chunks, tensors_.boundaries, runtime_.links(), runtime_.compute(), device,
                config.parallel.overlap_pp ? Overlap::kOn : Overlap::kOff),
      optimizer_({.config = config,
                  .store = store_,
                  .tensors = tensors_.optimizer,
                  .sums = statistics_,
                  .norm_sq = step_statistic(statistics_, offsetof(StepStatistics, norm_sq)),
                  .tp = runtime_.tp(),
                  .dp = runtime_.dp(),
                  .embedding = runtime_.embedding(),
                  .world = runtime_.world(),
                  .compute = runtime_.compute()}),
      evaluator_(config, mesh, device, runtime_, stage_, executor_,
                 {.loss = step_statistic(statistics_, offsetof(StepStatistics, loss)),
                  .loss_weight = tensors_.loss_weight,
                  .sample_logits = tensors_.sample_logits,
                  .sample_token = tensors_.sample_token}),
      timeline_(device, runtime_.compute()),
      train_plan_(train_plan(config, mesh.pp)),
      h_told_(device, 1),
      h_sums_(device, 1),
      h_norm_(device, 1),
      device_(device) {
  device.lend_workspace(tensors_.kernel_workspace);
  if (startup != nullptr) startup->phase_done("communicators");
  const auto file = [&](const char* name) { return tuning_dir.empty() ? "" : fmt::format("{}/{}", tuning_dir, name); };
  splits_ = find_overlap_splits(config, mesh, job, device, tensors_, store_, runtime_, file("gemm_algorithms.txt"),
                                file("overlap_splits.txt"));
  if (startup != nullptr) startup->phase_done("searches");
  evaluator_.initialize();
}

// The events of store and executor must outlive the work that still uses them.
Trainer::~Trainer() {
  runtime_.drain();
  device_.lend_workspace({});
}

void Trainer::make_start_values() {
  store_.make_start_values();
  has_state_ = true;
}

void Trainer::state_loaded() {
  store_.state_loaded();
  has_state_ = true;
}

StepResult Trainer::step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         const StepStatistics& told) {
  TRI_REQUIRE(has_state_, "a step before make_start_values() or state_loaded()");
  Stream& compute = runtime_.compute();
  const DrainOnThrow drain(runtime_);
  if (timed_) timeline_.begin();
  evaluator_.load_tokens(inputs, targets);
  *h_told_.data() = told;
  compute.copy(statistics_.data, h_told_.data(), statistics_.bytes());
  store_.begin_step();
  if (mesh_.pp.last()) compute.zero(stage_.head().losses);
  stage_.begin(Stage::Mode::kTrain);
  executor_.run(train_plan_, stage_);
  evaluator_.sum_losses();
  timeline_.enter(TimeCategory::kOptimizer);
  optimizer_.reduce();
  StepResult result{.learning_rate = learning_rate(config_.lr, step)};
  if (before_update_) before_update_();
  optimizer_.update(step, result.learning_rate);
  compute.copy(h_sums_.data(), statistics_.data, statistics_.bytes());
  compute.copy(h_norm_.data(), tensors_.optimizer.norm.data, tensors_.optimizer.norm.bytes());
  timeline_.end();
  compute.synchronize();  // the step's only wait of the host
  result.timeline = timeline_.take();
  result.pp_transfer_seconds = executor_.fastest_send();
  result.sums = *h_sums_.data();
  result.loss = result.sums.loss;
  result.grad_norm = *h_norm_.data();
  return result;
}

std::vector<std::string> Trainer::not_finite_names() {
  store_.gradients().sum_local_gradients(true);
  store_.begin_step();
  if (mesh_.pp.last()) runtime_.compute().zero(stage_.head().losses);
  stage_.begin(Stage::Mode::kTrain);
  executor_.run(train_plan_, stage_);
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
