#include "lib/infer/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "io/base/random.h"
#include "kernels/no_target.h"
#include "lib/comm/job/job.h"
#include "lib/infer/context.h"

namespace tri {
namespace {

// What the ranks that count the targets of an evaluation found.
struct TargetCounts {
  int64_t targets = 0, bytes = 0;  // bytes: of their text
};

}  // namespace

double Evaluation::perplexity() const { return std::exp(loss); }
double Evaluation::perplexity_per_byte() const {
  return std::exp(loss * static_cast<double>(tokens) / std::max(bytes, 1.0));
}

Evaluator::Evaluator(Engine& engine)
    : engine_(engine),
      batch_plan_(evaluation_plan(engine.config(), engine.mesh().axis("pp"), microbatches(engine.config()))),
      single_plan_(evaluation_plan(engine.config(), engine.mesh().axis("pp"), 1)),
      h_inputs_(engine.device(), static_cast<size_t>(engine.stage().inputs().numel())),
      h_targets_(engine.device(), static_cast<size_t>(engine.stage().targets().numel())),
      h_starts_(engine.device(), static_cast<size_t>(engine.stage().document_starts().numel())) {}

Evaluator::~Evaluator() { engine_.runtime().synchronize(); }

void Evaluator::load_copies(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                            std::span<const int32_t> document_starts) {
  const auto copy = [](Tensor device_tokens, HostBuffer<int32_t>& host, std::span<const int32_t> tokens) {
    if (device_tokens.empty()) return std::span<const int32_t>();
    TRI_REQUIRE(tokens.size() <= host.size(), "{} tokens for a step of {}", tokens.size(), host.size());
    std::copy(tokens.begin(), tokens.end(), host.data());
    return std::span<const int32_t>(host.data(), tokens.size());
  };
  const Stage& stage = engine_.stage();
  engine_.batch().load(copy(stage.inputs(), h_inputs_, inputs), copy(stage.targets(), h_targets_, targets),
                       copy(stage.document_starts(), h_starts_, document_starts));
}

double Evaluator::evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                           std::span<const int32_t> document_starts) {
  load_copies(inputs, targets, document_starts);
  return loss_of_batch(batch_plan_);
}

double Evaluator::loss_of_batch(const Plan& plan) {
  const Tensor loss = engine_.tensors().loss;
  GroupOnStream& world = engine_.runtime().world();
  const int64_t tokens = int64_t{engine_.config().data.global_batch} * engine_.config().model.seq_len;
  engine_.set_batch(tokens, tokens);
  engine_.batch().zero_losses();
  engine_.stage().begin(Stage::Mode::kEvaluate);
  engine_.executor().run(plan, engine_.stage());
  engine_.batch().sum_losses();
  world.after(engine_.runtime().compute());
  world.all_reduce(loss, ReduceOp::kSum);
  world.before(engine_.runtime().compute());
  const float sum = engine_.read_floats(loss).front();
  if (!std::isfinite(sum)) engine_.require_expert_memory();
  return sum;
}

EvaluationSize evaluation_size(const Config& config, int64_t available, int64_t most) {
  const int64_t batch = config.data.global_batch;
  const int64_t batches = std::min(most, available / batch + (available % batch != 0));
  return {.batches = batches, .samples = std::min(available, batches * batch)};
}

Evaluation Evaluator::evaluate(const EvaluationSize& size, const std::function<StepTokens()>& next,
                               const Tokenizer* tokenizer, const std::function<void()>& on_batch) {
  TRI_REQUIRE(size.batches >= 1, "an evaluation of {} batches", size.batches);
  const Config& config = engine_.config();
  const Mesh& mesh = engine_.mesh();
  Evaluation result{.samples = size.samples};
  // The dp ranks' targets form the batch; one rank of each group with the same targets counts them.
  const bool counts = mesh.axis("pp").ends_here() && mesh.first_of_replicas();
  TargetCounts mine;
  double sum = 0;
  const BatchShape full{.global_batch = config.data.global_batch,
                        .micro_batch = config.data.micro_batch,
                        .dp_size = mesh.joint_axis(kSampleAxes).size};
  const int last = full.for_samples(size.samples - (size.batches - 1) * full.global_batch).num_microbatches();
  const Plan last_plan = evaluation_plan(config, mesh.axis("pp"), last);
  for (int64_t i = 0; i < size.batches; ++i) {
    const StepTokens tokens = next();
    engine_.batch().load(tokens.inputs, tokens.targets, tokens.document_starts);
    sum += loss_of_batch(i + 1 < size.batches ? batch_plan_
                                              : last_plan);  // waits for the copies, so the tokens may be released
    if (counts)
      for (const int32_t token : tokens.targets) {
        if (token == kNoTarget) continue;
        ++mine.targets;
        if (tokenizer != nullptr) mine.bytes += tokenizer->token_bytes(token);
      }
    if (on_batch) on_batch();
  }
  Job* const job = engine_.job();
  for (const TargetCounts& of_rank : job == nullptr ? std::vector{mine} : job->all_gather(mine)) {
    result.tokens += of_rank.targets;
    result.bytes += static_cast<double>(of_rank.bytes);
  }
  if (result.tokens == 0) {
    result.loss = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  // The sum of each batch was divided by the tokens of a full one.
  const double batch = full.global_batch;
  result.loss = result.tokens == size.samples * config.model.seq_len
                    ? sum / (static_cast<double>(size.samples) / batch)
                    : sum * (batch * config.model.seq_len) / static_cast<double>(result.tokens);
  return result;
}

std::vector<float> Evaluator::next_token_logits(std::span<const int32_t> tokens) {
  const StageDims dims = stage_dims(engine_.config(), engine_.mesh());
  const SequenceChunks& chunks = dims.chunks;
  const auto length = static_cast<int64_t>(tokens.size());
  TRI_REQUIRE(length > 0 && length <= chunks.seq_len, "{} tokens in a window of {}", length, chunks.seq_len);
  // Tokens after the prompt do not affect it, because attention is causal. Equal tokens choose the same experts, for
  // whose rows a rank may lack memory (parallel.ep_capacity), so the padding of models with experts has many tokens.
  std::vector<int32_t> padded(static_cast<size_t>(dims.R), 0);
  if (engine_.config().model.experts > 0)
    for (int64_t row = 0; row < dims.R; ++row)
      padded[static_cast<size_t>(row)] = static_cast<int32_t>(
          (engine_.mesh().joint_axis(kTokenAxes).rank * dims.R + row) % engine_.config().model.vocab);
  for (const SequencePiece& piece : chunks.pieces())
    if (piece.global < length)
      std::copy_n(tokens.begin() + piece.global, std::min(piece.count, length - piece.global),
                  padded.begin() + piece.local);
  const int64_t last = chunks.place_of(length - 1).local;  // on another cp rank the row of another token
  load_copies(padded, padded);
  Stage& stage = engine_.stage();
  Stream& compute = engine_.runtime().compute();
  GroupOnStream& tp = engine_.runtime().tp().collectives();
  const Tensor full_row = engine_.tensors().sample_logits;
  stage.set_on_logits([&](int) {
    const Tensor row = stage.head().logits.rows(last, 1).flat();
    tp.after(compute);
    tp.all_gather(full_row, row);
    tp.before(compute);
  });
  stage.begin(Stage::Mode::kLogits);
  engine_.executor().run(single_plan_, stage);
  compute.synchronize();
  engine_.require_expert_memory();
  if (!engine_.mesh().axis("pp").ends_here()) return {};
  std::vector<float> logits = engine_.read_floats(full_row);
  logits.resize(static_cast<size_t>(engine_.config().model.vocab));  // without the padding
  cap_logits(logits, engine_.config().model.logit_softcap);
  return logits;
}

int32_t Evaluator::broadcast_token(int32_t token, int root) {
  Stream& compute = engine_.runtime().compute();
  GroupOnStream& world = engine_.runtime().world();
  const Tensor on_device = engine_.tensors().sample_tokens;
  compute.copy(on_device.data, &token, sizeof token);
  world.after(compute);
  world.broadcast(on_device, root);
  world.before(compute);
  compute.copy(&token, on_device.data, sizeof token);
  compute.synchronize();
  return token;
}

std::vector<int32_t> Evaluator::generate(std::vector<int32_t> text, const Generation& g) {
  const ModelConfig& model = engine_.config().model;
  const Mesh& mesh = engine_.mesh();
  TRI_REQUIRE(!text.empty() && g.vocab > 0 && g.vocab <= model.vocab, "{} tokens, vocabulary {}", text.size(), g.vocab);
  const size_t prompt = text.size();
  const SequenceChunks chunks{model.seq_len, mesh.axis("cp")};
  for (int i = 0; i < g.tokens; ++i) {
    const size_t begin = context_begin(prompt, text.size(), static_cast<size_t>(model.seq_len));
    const int holder = chunks.place_of(static_cast<int64_t>(text.size() - begin) - 1).rank;  // of the last token
    const int root = mesh.grid.rank_at({{"pp", mesh.axis("pp").end()}, {"cp", holder}});
    const std::vector<float> logits = next_token_logits(std::span(text).subspan(begin));
    int32_t token = 0;
    if (mesh.world_rank == root)
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
