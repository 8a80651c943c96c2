#include "lib/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "lib/optim/lr.h"
#include "lib/train/gemm_tuning.h"

namespace tri {

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

Trainer::Trainer(const Config& config, const Mesh& mesh, Job* job, Device& device, Arena& arena, StartupClock* startup,
                 const std::string& gemm_file)
    : config_(config),
      mesh_(mesh),
      tensors_(allocate_rank(config, mesh, arena)),
      runtime_(config, mesh, job, device),
      store_(config, mesh, tensors_.store, microbatches(config), device, runtime_.compute(), runtime_.dp()),
      stage_(config, mesh, tensors_.stage, store_.parameters(), store_, runtime_.compute(), runtime_.tp(),
             1.0f / (static_cast<float>(config.data.global_batch) * static_cast<float>(config.model.seq_len))),
      executor_(mesh.pp, config.parallel.chunks, tensors_.boundaries, runtime_.links(), runtime_.compute(), device,
                config.parallel.overlap_pp ? Overlap::kOn : Overlap::kOff),
      optimizer_(
          config, store_, tensors_.optimizer,
          {.tp = runtime_.tp(), .dp = runtime_.dp(), .embedding = runtime_.embedding(), .world = runtime_.world()},
          runtime_.compute()),
      train_plan_(train_plan(config, mesh.pp)),
      evaluation_plan_(evaluation_plan(config, mesh.pp, microbatches(config))),
      single_plan_(evaluation_plan(config, mesh.pp, 1)),
      h_inputs_(device, static_cast<size_t>(stage_.inputs().numel())),
      h_targets_(device, static_cast<size_t>(stage_.targets().numel())),
      h_flags_(device, kNumStats - kStatStop),
      h_stats_(device, kNumStats + 1),
      device_(device) {
  device.lend_workspace(tensors_.kernel_workspace);
  Stream& compute = runtime_.compute();
  if (startup != nullptr) startup->phase_done("communicators");
  search_gemms(config, mesh, job, device, tensors_, store_, compute, gemm_file);
  if (startup != nullptr) startup->phase_done("gemm search");
  store_.initialize();
  if (const Tensor table = stage_.rope_table(); !table.empty()) {
    std::vector<float> h_table(static_cast<size_t>(table.numel()));
    fill_rope_table(h_table.data(), config.model.seq_len, head_size(config.model), config.model.rope_theta);
    compute.copy(table.data, h_table.data(), table.bytes());
    compute.synchronize();
  }
  if (mesh.pp.last()) {
    // Every tp rank of the last stage holds the same loss: the first one's counts.
    const double tokens = static_cast<double>(config.data.global_batch) * config.model.seq_len;
    const std::vector<float> weights(static_cast<size_t>(microbatches(config)),
                                     mesh.tp.first() ? static_cast<float>(1.0 / tokens) : 0.0f);
    compute.copy(tensors_.loss_weight.data, weights.data(), tensors_.loss_weight.bytes());
    compute.synchronize();
  }
  if (startup != nullptr) startup->phase_done("start values");
}

// The events of store and executor must outlive the work that still uses them.
Trainer::~Trainer() {
  runtime_.drain();
  device_.lend_workspace({});
}

void Trainer::load_tokens(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
  const auto load = [&](Tensor device_tokens, HostBuffer<int32_t>& host, std::span<const int32_t> tokens) {
    if (device_tokens.empty()) return;
    TRI_REQUIRE(static_cast<int64_t>(tokens.size()) <= device_tokens.numel(), "{} tokens for a step of {}",
                tokens.size(), device_tokens.numel());
    std::copy(tokens.begin(), tokens.end(), host.data());
    runtime_.compute().copy(device_tokens.data, host.data(), static_cast<int64_t>(tokens.size_bytes()));
  };
  load(stage_.inputs(), h_inputs_, inputs);
  load(stage_.targets(), h_targets_, targets);
}

void Trainer::sum_losses() {
  const Tensor loss = tensors_.optimizer.stats.flat(kStatLoss, 1);
  runtime_.compute().zero(loss);
  if (mesh_.pp.last())
    weighted_sum({.out = loss, .inp = stage_.head().losses, .weight = tensors_.loss_weight}, runtime_.compute());
}

std::vector<float> Trainer::read(Tensor tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype == Dtype::kF32) {
    runtime_.compute().copy(values.data(), tensor.data, tensor.bytes());
    runtime_.compute().synchronize();
    return values;
  }
  std::vector<bf16> stored(values.size());
  runtime_.compute().copy(stored.data(), tensor.data, tensor.bytes());
  runtime_.compute().synchronize();
  for (size_t i = 0; i < stored.size(); ++i) values[i] = static_cast<float>(stored[i]);
  return values;
}

StepResult Trainer::step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                         RankFlags flags) {
  Stream& compute = runtime_.compute();
  load_tokens(inputs, targets);
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
  sum_losses();
  optimizer_.reduce();
  StepResult result{.learning_rate = learning_rate(config_.lr, step)};
  if (before_update_) before_update_();
  optimizer_.update(step, result.learning_rate);
  compute.copy(h_stats_.data(), tensors_.optimizer.stats.data, tensors_.optimizer.stats.bytes());
  compute.copy(h_stats_.data() + kNumStats, tensors_.optimizer.norm.data, tensors_.optimizer.norm.bytes());
  compute.synchronize();  // the step's only wait of the host
  result.loss = h_stats_.data()[kStatLoss];
  result.grad_norm = h_stats_.data()[kNumStats];
  result.stop = static_cast<int>(h_stats_.data()[kStatStop]);
  result.saved = static_cast<int>(h_stats_.data()[kStatSaved]);
  result.failed = static_cast<int>(h_stats_.data()[kStatFailed]);
  result.stop_age = h_stats_.data()[kStatStopAge] / std::max(1, result.stop);
  result.time_needed = h_stats_.data()[kStatTimeNeeded];
  return result;
}

double Trainer::evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
  Stream& compute = runtime_.compute();
  load_tokens(inputs, targets);
  if (mesh_.pp.last()) compute.zero(stage_.head().losses);
  stage_.begin(Stage::Mode::kEvaluate);
  executor_.run(evaluation_plan_, stage_);
  sum_losses();
  runtime_.world().after(compute);
  runtime_.world().all_reduce(tensors_.optimizer.stats, ReduceOp::kSum);
  runtime_.world().before(compute);
  return read(tensors_.optimizer.stats)[kStatLoss];
}

std::vector<float> Trainer::next_token_logits(std::span<const int32_t> tokens) {
  const StageDims dims = stage_dims(config_, mesh_);
  TRI_REQUIRE(!tokens.empty() && static_cast<int>(tokens.size()) <= dims.T, "{} tokens in a window of {}",
              tokens.size(), dims.T);
  // What stands behind the prompt does not matter to it: attention is causal.
  std::vector<int32_t> padded(static_cast<size_t>(dims.R), 0);
  std::copy(tokens.begin(), tokens.end(), padded.begin());
  load_tokens(padded, padded);
  Channel& tp = runtime_.tp();
  stage_.set_on_logits([&](int) {
    const Tensor row = stage_.head().logits.rows(static_cast<int64_t>(tokens.size()) - 1, 1).flat();
    tp.after(runtime_.compute());
    tp.all_gather(tensors_.sample_logits, row);
    tp.before(runtime_.compute());
  });
  stage_.begin(Stage::Mode::kLogits);
  executor_.run(single_plan_, stage_);
  runtime_.compute().synchronize();
  if (!mesh_.pp.last()) return {};
  std::vector<float> logits = read(tensors_.sample_logits);
  logits.resize(static_cast<size_t>(config_.model.vocab));  // without the padding
  return logits;
}

int32_t Trainer::broadcast_token(int32_t token, int root) {
  Stream& compute = runtime_.compute();
  compute.copy(tensors_.sample_token.data, &token, sizeof token);
  runtime_.world().after(compute);
  runtime_.world().broadcast(tensors_.sample_token, root);
  runtime_.world().before(compute);
  compute.copy(&token, tensors_.sample_token.data, sizeof token);
  compute.synchronize();
  return token;
}

std::vector<std::string> Trainer::not_finite_names() {
  std::vector<std::string> names;
  if (mesh_.pp.last()) {
    const std::vector<float> losses = read(stage_.head().losses);
    for (size_t m = 0; m < losses.size(); ++m)
      if (!std::isfinite(losses[m])) names.push_back(fmt::format("loss of microbatch {}", m));
  }
  const std::vector<float> own = read(store_.tensors().local_sumsq), reduced = read(tensors_.optimizer.sumsq);
  const auto split = static_cast<size_t>(store_.tensors().num_split_tensors);
  for (size_t i = 0; i < own.size(); ++i)
    if (!std::isfinite(own[i]) || (mesh_.dp.size == 1 && i < split && !std::isfinite(reduced[i])))
      names.push_back("gradient of " + store_.tensor_names()[i]);
  return names;
}

}  // namespace tri
