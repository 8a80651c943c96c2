// trireme eval: the loss of a checkpoint's model on token files, or log-likelihoods of texts.
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/progress.h"
#include "io/base/text_file.h"
#include "io/tokens/prepare.h"
#include "lib/infer/loaded_model.h"
#include "lib/infer/scoring.h"
#include "lib/infer/text_lines.h"
#include "lib/train/inputs.h"
#include "lib/train/node_loader.h"
#include "lib/train/rank_recorder.h"

namespace tri {
namespace {

struct EvalOptions {
  std::string path, texts;
  std::vector<std::string> data, overrides;
  int64_t batches = 0;
  bool ema = false, json = false, quiet = false;

  WeightSet weights() const { return ema ? WeightSet::kAverage : WeightSet::kLast; }
};

// Returns whether the tokenizer is known to be the one that made the tokens: only then is their number of bytes known.
Result<bool> knows_bytes(const Config& config) {
  for (const Source& source : all_sources(config.data)) {
    const auto made_with = prepared_with(source.path);
    if (!made_with) return made_with.error();
    if (made_with.value().fingerprint.empty()) return false;
  }
  return true;
}

void print(const CheckpointJob& loaded, const Evaluation& e, int64_t available, bool json) {
  const bool bytes = e.bytes > 0;
  if (json) {
    nlohmann::ordered_json object = {{"checkpoint", loaded.checkpoint.folder},
                                     {"step", loaded.step},
                                     {"loss", e.loss},
                                     {"perplexity", e.perplexity()},
                                     {"perplexity_per_byte", nullptr},
                                     {"samples", e.samples},
                                     {"tokens", e.tokens}};
    if (bytes) object["perplexity_per_byte"] = e.perplexity_per_byte();
    print_object(object);
    return;
  }
  print_out("{}: loss {:.6f} nats/token, perplexity {:.3f} per token{}, over {} of {} ({} tokens)\n",
            loaded.checkpoint.folder, e.loss, e.perplexity(),
            bytes ? fmt::format(", {:.3f} per byte", e.perplexity_per_byte()) : "", counted(e.samples, "sample"),
            available, e.tokens);
}

struct Texts {
  std::vector<ScoredText> tokens;
  std::vector<int64_t> bytes;  // of the text that is scored
};
template <class Archive>
void fields(Archive& archive, Texts& texts) {
  archive(texts.tokens, texts.bytes);
}

Result<Texts> read_texts(const std::string& path, const Config& config) {
  const auto text = read_text(path);
  if (!text) return text.error();
  const auto lines = read_text_lines(text.value(), path);
  if (!lines) return lines.error();
  const auto tokenizer = open_tokenizer(config.data.tokenizer, OtherClass::kWarn);
  if (!tokenizer)
    return usage_error("data.tokenizer: {}; name it with --set data.tokenizer=PATH", tokenizer.error().message);
  if (const int vocab = tokenizer.value()->vocab_size(); vocab > config.model.vocab)
    return usage_error(
        "data.tokenizer: {} has {} tokens, but the model has {}; name the tokenizer that the model was trained with",
        config.data.tokenizer, vocab, config.model.vocab);
  Texts texts;
  for (const TextLine& line : lines.value()) {
    auto scored = tokens_to_score(line, *tokenizer.value());
    if (!scored) return usage_error("{}: text {}: {}", path, texts.tokens.size() + 1, scored.error().message);
    texts.tokens.push_back(std::move(scored).value());
    texts.bytes.push_back(static_cast<int64_t>(line.text.size()));
  }
  return texts;
}

// Returns the size of the cache: enough sequences to fill a pass with texts of this length.
CacheSize scoring_cache(const Config& config, const std::vector<ScoredText>& texts) {
  constexpr int64_t kMostRows = 256, kMostSequences = 64, kMostCached = 1 << 16;  // kMostCached: tokens
  int64_t tokens = 0;
  for (const ScoredText& text : texts) tokens += std::min<int64_t>(std::ssize(text.tokens), config.model.seq_len);
  const int64_t filling = kMostRows * std::ssize(texts) / tokens + 2;
  const int64_t fitting = std::max<int64_t>(1, kMostCached / config.model.seq_len);
  return cache_size(config, static_cast<int>(std::min({filling, fitting, kMostSequences, std::ssize(texts)})),
                    std::min(kMostRows, tokens));
}

Result<void> eval_texts(const EvalOptions& options, Job& job, ProcessDeadline& deadline) {
  Result<Texts> read = Texts{};
  Result<void> cached;
  const auto loaded =
      load_checkpoint_config(options.path, options.overrides, options.weights(), job, [&](Config& config) {
        read = job.broadcast(job.world_rank() == 0 ? read_texts(options.texts, config) : Texts{});
        if (!read) return;
        int64_t longest = 0;
        for (const ScoredText& text : read.value().tokens)
          longest = std::max<int64_t>(longest, std::ssize(text.tokens));
        cached = use_cache(config, longest, job.world_size());
      });
  if (!read) return read.error();
  if (!cached) return cached.error();
  if (!loaded) return loaded.error();
  const Texts& texts = read.value();
  const Config& config = loaded.value().job.config;
  deadline.set(config.fault);
  auto device = open_planned_device(loaded.value().job.plan.device, job);
  if (!device) return device.error();
  const WatchedUse watched(loaded.value().job, job, *device.value(), deadline);
  auto model = LoadedModel::load(loaded.value().checkpoint, config, loaded.value().job.mesh, job, *device.value(),
                                 scoring_cache(config, texts.tokens));
  if (!model) return model.error();
  std::optional<ProgressBar> progress;
  if (job.world_rank() == 0) {
    int64_t tokens = 0;
    for (const ScoredText& text : texts.tokens) tokens += std::ssize(text.tokens) - static_cast<int64_t>(text.first);
    progress.emplace("eval", "token", tokens);
  }
  const PhaseScope phase(RunPhase::kEvaluation);
  const std::vector<TextScore> scores = score_texts(model.value()->text(), texts.tokens, [&](int64_t tokens) {
    tick_flight_recorder();
    if (progress) progress->add(tokens);
  });
  progress.reset();
  Result<void> finite;
  for (size_t i = 0; i < scores.size(); ++i) {
    const TextScore& score = scores[i];
    const double bits = -score.logprob / std::log(2.0);
    if (!std::isfinite(score.logprob) && finite)
      finite = Error{fmt::format("{}: text {}: the log-probability is {}", options.texts, i + 1, score.logprob),
                     ExitCode::kNotFinite};
    print_object(nlohmann::ordered_json{{"logprob", score.logprob},
                                        {"tokens", score.tokens},
                                        {"bytes", texts.bytes[i]},
                                        {"bits_per_byte", bits / static_cast<double>(texts.bytes[i])},
                                        {"is_greedy", score.is_greedy}});
  }
  return job.broadcast(finite);
}

// The error of an evaluation of `samples` of `available` samples whose tokens are all masked.
Error no_target(const EvalOptions& options, const Config& config, int64_t samples, int64_t available) {
  const std::string files = !options.data.empty()        ? fmt::format("--data {}", fmt::join(options.data, ", "))
                            : config.data.stages.empty() ? std::string("data.sources")
                                                         : std::string("data.stages");
  return file_error(
      "{}: loss masks exclude every token of the {} evaluated, so they have no loss; evaluate {}", files,
      counted(samples, options.data.empty() ? "validation sample" : "sample"),
      samples < available ? "more (--batches 0: all) or other files (--data PREFIX)" : "other files (--data PREFIX)");
}

Result<void> eval(const EvalOptions& options, Job& job, ProcessDeadline& deadline) {
  if (options.quiet) log_quiet();
  if (!options.texts.empty()) return eval_texts(options, job, deadline);
  // Files named on the command line are read whole; of the run's own files only the part that training does not read.
  const Split split = options.data.empty() ? Split::kValidation : Split::kWhole;
  const auto loaded =
      load_checkpoint_config(options.path, options.overrides, options.weights(), job, [&](Config& config) {
        config.data.validation.clear();
        if (options.data.empty()) return;
        config.data.sources.clear();
        for (const std::string& path : options.data) config.data.sources.push_back({path, 1.0});
        config.data.validation_fraction = 0;
        config.data.stages.clear();
        config.data.packing = Packing::kStream;
      });
  if (!loaded) return loaded.error();
  const Config& config = loaded.value().job.config;
  deadline.set(config.fault);
  const Mesh& mesh = loaded.value().job.mesh;
  if (all_sources(config.data).empty())
    return usage_error("data.sources: the checkpoint's run names none; name token files with --data PREFIX");
  Inputs inputs;
  if (auto opened = open_inputs(config, mesh, job, inputs); !opened) return opened;
  const int64_t available = inputs.num_samples(split);
  if (available == 0)
    return usage_error("data.validation_fraction: {} leaves no sample to evaluate; name token files with --data PREFIX",
                       config.data.validation_fraction);
  const auto bytes = job.broadcast(job.world_rank() == 0 ? knows_bytes(config) : false);
  if (!bytes) return bytes.error();

  auto device = open_planned_device(loaded.value().job.plan.device, job);
  if (!device) return device.error();
  const WatchedUse watched(loaded.value().job, job, *device.value(), deadline);
  auto model = LoadedModel::load(loaded.value().checkpoint, config, mesh, job, *device.value());
  if (!model) return model.error();
  const int64_t most = options.batches > 0 ? options.batches : std::numeric_limits<int64_t>::max();
  const EvaluationSize size = evaluation_size(config, available, most);
  const int64_t batch_tokens = int64_t{config.data.global_batch} * config.model.seq_len;
  std::optional<ProgressBar> progress;
  if (mesh.world_rank == 0) progress.emplace("eval", "token", size.samples * config.model.seq_len);
  NodeLoader loader({.config = config,
                     .mesh = mesh,
                     .job = &job,
                     .node_ranks = job.node_ranks(),
                     .device = *device.value(),
                     .dataset = inputs.dataset ? &*inputs.dataset : nullptr,
                     .split = split,
                     .steps = size.batches,
                     .num_samples = size.samples});
  int64_t tokens_left = size.samples * config.model.seq_len;  // the last batch may be smaller
  const PhaseScope phase(RunPhase::kEvaluation);
  const Evaluation result = model.value()->evaluator().evaluate(
      size, [&] { return loader.next(); }, bytes.value() ? inputs.tokenizer.get() : nullptr,
      [&] {
        tick_flight_recorder();
        if (progress) progress->add(std::min(batch_tokens, tokens_left));
        tokens_left -= batch_tokens;
      });
  progress.reset();
  if (result.tokens == 0) return no_target(options, config, result.samples, available);
  if (!std::isfinite(result.loss))
    return Error{fmt::format("{}: the loss is {}", loaded.value().checkpoint.folder, result.loss),
                 ExitCode::kNotFinite};
  if (mesh.world_rank == 0) print(loaded.value(), result, available, options.json);
  return {};
}

}  // namespace

void add_eval_command(Command& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand(
      "eval", "Compute loss and perplexity of a checkpoint: [mpirun -n RANKS] trireme eval CHECKPOINT|RUN_DIR");
  auto options = std::make_shared<EvalOptions>();
  command->add_option("checkpoint", options->path, "A step_... folder; or a run's folder: its newest valid checkpoint")
      ->required();
  command->add_flag("--ema", options->ema, kEmaHelp);
  auto* data = command->add_option(
      "--data", options->data,
      "PREFIX of a token file; all its samples are read once; repeatable; default: the run's validation samples");
  auto* batches =
      command
          ->add_option("--batches", options->batches, "At most this many batches of data.global_batch samples; 0: all")
          ->check(kCountOrZero)
          ->capture_default_str();
  command
      ->add_option("--texts", options->texts,
                   "File with a JSON object per line: \"text\", or \"context\" and \"continuation\"; prints the "
                   "log-likelihood of each text or continuation, a JSON object per line")
      ->excludes(data)
      ->excludes(batches);
  command->add_option(
      "--set", options->overrides,
      "section.key=value, overrides the checkpoint's config; repeatable. On several ranks the model is split as in "
      "training if that divides their number, else every rank holds all of it; if parallel.tp or pp is set, the other "
      "is 1 unless it is set too");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_flag("--quiet", options->quiet, "Print only the answer, warnings and errors on the terminal");
  on_watched_job(command, status, argc, argv,
                 [options](Job& job, ProcessDeadline& deadline) { return eval(*options, job, deadline); });
}

}  // namespace tri
