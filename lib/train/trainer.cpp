#include "lib/train/trainer.h"

#include <algorithm>
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

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

Trainer::Trainer(const Config& config, const Mesh& mesh, Job* job, Device& device, Arena& arena, StartupClock* startup,
                 const std::string& tuning_dir)
    : config_(config),
      mesh_(mesh),
      tensors_(allocate_rank(config, mesh, arena)),
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
      optimizer_(
          config, store_, tensors_.optimizer,
          {.tp = runtime_.tp(), .dp = runtime_.dp(), .embedding = runtime_.embedding(), .world = runtime_.world()},
          runtime_.compute()),
      evaluator_(config, mesh, device, runtime_, stage_, executor_,
                 {.loss = tensors_.optimizer.stats.flat(kStatLoss, 1),
                  .loss_weight = tensors_.loss_weight,
                  .sample_logits = tensors_.sample_logits,
                  .sample_token = tensors_.sample_token}),
      timeline_(device, runtime_.compute()),
      train_plan_(train_plan(config, mesh.pp)),
      h_flags_(device, kNumStats - kStatStop),
      h_stats_(device, kNumStats + 1),
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
                         RankFlags flags) {
  TRI_REQUIRE(has_state_, "a step before make_start_values() or state_loaded()");
  Stream& compute = runtime_.compute();
  const DrainOnThrow drain(runtime_);
  if (timed_) timeline_.begin();
  evaluator_.load_tokens(inputs, targets);
  h_flags_.data()[kStatStop - kStatStop] = flags.stop ? 1.0f : 0.0f;
  h_flags_.data()[kStatSaved - kStatStop] = flags.saved ? 1.0f : 0.0f;
  h_flags_.data()[kStatFailed - kStatStop] = flags.failed ? 1.0f : 0.0f;
  h_flags_.data()[kStatStopAge - kStatStop] = flags.stop ? flags.stop_age : 0.0f;
  h_flags_.data()[kStatTimeNeeded - kStatStop] = mesh_.world_rank == 0 ? flags.time_needed : 0.0f;
  const Tensor device_flags = tensors_.optimizer.stats.flat(kStatStop, kNumStats - kStatStop);
  compute.copy(device_flags.data, h_flags_.data(), device_flags.bytes());
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
  compute.copy(h_stats_.data(), tensors_.optimizer.stats.data, tensors_.optimizer.stats.bytes());
  compute.copy(h_stats_.data() + kNumStats, tensors_.optimizer.norm.data, tensors_.optimizer.norm.bytes());
  timeline_.end();
  compute.synchronize();  // the step's only wait of the host
  result.timeline = timeline_.take();
  result.pp_transfer_seconds = executor_.fastest_send();
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
  const std::vector<float> own = evaluator_.read(store_.tensors().local_sumsq),
                           reduced = evaluator_.read(tensors_.optimizer.sumsq);
  const auto split = static_cast<size_t>(store_.tensors().num_split_tensors);
  for (size_t i = 0; i < own.size(); ++i)
    if (!std::isfinite(own[i]) || (mesh_.dp.size == 1 && i < split && !std::isfinite(reduced[i])))
      names.push_back("gradient of " + store_.memory().tensor_names()[i]);
  return names;
}

}  // namespace tri
