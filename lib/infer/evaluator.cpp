#include "lib/infer/evaluator.h"

#include <algorithm>
#include <cmath>

#include "io/base/random.h"
#include "kernels/no_target.h"
#include "kernels/ops.h"
#include "lib/comm/job.h"

namespace tri {

double Evaluation::perplexity() const { return std::exp(loss); }
double Evaluation::perplexity_per_byte() const {
  return std::exp(loss * static_cast<double>(tokens) / std::max(bytes, 1.0));
}

Evaluator::Evaluator(Engine& engine, Tensor loss)
    : config_(engine.config()),
      mesh_(engine.mesh()),
      job_(engine.job()),
      runtime_(engine.runtime()),
      stage_(engine.stage()),
      executor_(engine.executor()),
      tensors_(engine.tensors()),
      loss_(loss),
      batch_plan_(evaluation_plan(config_, mesh_.axis("pp"), microbatches(config_))),
      single_plan_(evaluation_plan(config_, mesh_.axis("pp"), 1)),
      h_inputs_(engine.device(), static_cast<size_t>(stage_.inputs().numel())),
      h_targets_(engine.device(), static_cast<size_t>(stage_.targets().numel())) {}

void Evaluator::initialize() {
  Stream& compute = runtime_.compute();
  if (const Tensor table = stage_.rope_table(); !table.empty()) {
    std::vector<float> h_table(static_cast<size_t>(table.numel()));
    fill_rope_table(h_table.data(), config_.model.seq_len, head_size(config_.model), config_.model.rope_theta);
    compute.copy(table.data, h_table.data(), table.bytes());
    compute.synchronize();
  }
  if (mesh_.axis("pp").last()) {
    // Ranks of the last stage that took the same samples hold the same loss: that of the first one counts.
    const double tokens = static_cast<double>(config_.data.global_batch) * config_.model.seq_len;
    const std::vector<float> weights(static_cast<size_t>(microbatches(config_)),
                                     mesh_.first_of_replicas() ? static_cast<float>(1.0 / tokens) : 0.0f);
    compute.copy(tensors_.loss_weight.data, weights.data(), tensors_.loss_weight.bytes());
    compute.synchronize();
  }
}

void Evaluator::load_tokens(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
  const auto load = [&](Tensor device_tokens, std::span<const int32_t> tokens) {
    if (device_tokens.empty()) return;
    TRI_REQUIRE(static_cast<int64_t>(tokens.size()) <= device_tokens.numel(), "{} tokens for a step of {}",
                tokens.size(), device_tokens.numel());
    runtime_.compute().copy(device_tokens.data, tokens.data(), static_cast<int64_t>(tokens.size_bytes()));
  };
  load(stage_.inputs(), inputs);
  load(stage_.targets(), targets);
}

void Evaluator::load_copies(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
  const auto copy = [](Tensor device_tokens, HostBuffer<int32_t>& host, std::span<const int32_t> tokens) {
    if (device_tokens.empty()) return std::span<const int32_t>();
    TRI_REQUIRE(tokens.size() <= host.size(), "{} tokens for a step of {}", tokens.size(), host.size());
    std::copy(tokens.begin(), tokens.end(), host.data());
    return std::span<const int32_t>(host.data(), tokens.size());
  };
  load_tokens(copy(stage_.inputs(), h_inputs_, inputs), copy(stage_.targets(), h_targets_, targets));
}

void Evaluator::sum_losses() {
  runtime_.compute().zero(loss_);
  if (mesh_.axis("pp").last())
    weighted_sum({.out = loss_, .inp = stage_.head().losses, .weight = tensors_.loss_weight}, runtime_.compute());
}

std::vector<float> Evaluator::read(Tensor tensor) {
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

double Evaluator::evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
  load_copies(inputs, targets);
  return loss_of_batch();
}

double Evaluator::loss_of_batch() {
  Stream& compute = runtime_.compute();
  if (mesh_.axis("pp").last()) compute.zero(stage_.head().losses);
  stage_.begin(Stage::Mode::kEvaluate);
  executor_.run(batch_plan_, stage_);
  sum_losses();
  runtime_.world().after(compute);
  runtime_.world().all_reduce(loss_, ReduceOp::kSum);
  runtime_.world().before(compute);
  return read(loss_).front();
}

EvaluationSize evaluation_size(const Config& config, int64_t available, int64_t most) {
  const int64_t batch = config.data.global_batch;
  const int64_t batches = std::min(most, available / batch + (available % batch != 0));
  return {.batches = batches, .samples = std::min(available, batches * batch)};
}

Evaluation Evaluator::evaluate(const EvaluationSize& size, const std::function<StepTokens()>& next,
                               const Tokenizer* tokenizer, const std::function<void()>& on_batch) {
  TRI_REQUIRE(size.batches >= 1, "an evaluation of {} batches", size.batches);
  const DrainOnThrow drain(runtime_);
  Evaluation result{.samples = size.samples};
  result.tokens = result.samples * config_.model.seq_len;
  // The dp ranks' targets are the batch: each is counted by one of the ranks that take it.
  const bool counts_bytes = tokenizer != nullptr && mesh_.axis("pp").last() && mesh_.first_of_replicas();
  int64_t bytes = 0;
  double sum = 0;
  for (int64_t i = 0; i < size.batches; ++i) {
    const StepTokens tokens = next();
    load_tokens(tokens.inputs, tokens.targets);
    sum += loss_of_batch();  // has waited for the copies: the tokens may go
    if (counts_bytes)
      for (const int32_t token : tokens.targets)
        if (token != kNoTarget) bytes += tokenizer->token_bytes(token);
    if (on_batch) on_batch();
  }
  // Every batch's sum was divided by the tokens of a full one.
  result.loss = sum / (static_cast<double>(size.samples) / config_.data.global_batch);
  for (const int64_t of_rank : job_ == nullptr ? std::vector{bytes} : job_->gather(bytes))
    result.bytes += static_cast<double>(of_rank);
  return result;
}

std::vector<float> Evaluator::next_token_logits(std::span<const int32_t> tokens) {
  const StageDims dims = stage_dims(config_, mesh_);
  TRI_REQUIRE(!tokens.empty() && static_cast<int>(tokens.size()) <= dims.T, "{} tokens in a window of {}",
              tokens.size(), dims.T);
  // What stands behind the prompt does not matter to it: attention is causal.
  std::vector<int32_t> padded(static_cast<size_t>(dims.R), 0);
  std::copy(tokens.begin(), tokens.end(), padded.begin());
  load_copies(padded, padded);
  GroupOnStream& tp = runtime_.tp().collectives();
  stage_.set_on_logits([&](int) {
    const Tensor row = stage_.head().logits.rows(static_cast<int64_t>(tokens.size()) - 1, 1).flat();
    tp.after(runtime_.compute());
    tp.all_gather(tensors_.sample_logits, row);
    tp.before(runtime_.compute());
  });
  stage_.begin(Stage::Mode::kLogits);
  executor_.run(single_plan_, stage_);
  runtime_.compute().synchronize();
  if (!mesh_.axis("pp").last()) return {};
  std::vector<float> logits = read(tensors_.sample_logits);
  logits.resize(static_cast<size_t>(config_.model.vocab));  // without the padding
  return logits;
}

int32_t Evaluator::broadcast_token(int32_t token, int root) {
  Stream& compute = runtime_.compute();
  compute.copy(tensors_.sample_token.data, &token, sizeof token);
  runtime_.world().after(compute);
  runtime_.world().broadcast(tensors_.sample_token, root);
  runtime_.world().before(compute);
  compute.copy(&token, tensors_.sample_token.data, sizeof token);
  compute.synchronize();
  return token;
}

std::vector<int32_t> Evaluator::generate(std::vector<int32_t> text, const Generation& g) {
  TRI_REQUIRE(!text.empty() && g.vocab > 0 && g.vocab <= config_.model.vocab, "{} tokens, vocabulary {}", text.size(),
              g.vocab);
  const int root = mesh_.grid.rank_at({{"pp", mesh_.axis("pp").size - 1}});
  for (int i = 0; i < g.tokens; ++i) {
    const size_t window = std::min(text.size(), static_cast<size_t>(config_.model.seq_len));
    const std::vector<float> logits = next_token_logits(std::span(text).subspan(text.size() - window));
    int32_t token = 0;
    if (mesh_.world_rank == root)
      token = sample_token(std::span(logits).first(static_cast<size_t>(g.vocab)), g.sampling,
                           random_uniform(g.key, static_cast<uint64_t>(i)));
    token = broadcast_token(token, root);
    if (token == g.stop) break;
    text.push_back(token);
    if (g.on_token) g.on_token(text);
  }
  return text;
}

}  // namespace tri
