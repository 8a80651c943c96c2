// trireme generate: text from a checkpoint's model.
#include <fmt/ranges.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/progress.h"
#include "io/base/random.h"
#include "io/base/readable_text.h"
#include "io/base/text_file.h"
#include "lib/infer/generation.h"
#include "lib/infer/loaded_model.h"
#include "lib/infer/text_lines.h"
#include "lib/infer/text_stream.h"
#include "lib/train/rank_recorder.h"

namespace tri {
namespace {

struct GenerateOptions {
  std::string path, prompt, prompts;
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> stops, overrides;
  int tokens = 200, batch = 8;
  uint64_t seed = 1234;
  Sampling sampling;
  bool ema = false, ignore_end = false, json = false, quiet = false;

  WeightSet weights() const { return ema ? WeightSet::kAverage : WeightSet::kLast; }
};

struct Prompt {
  std::vector<int32_t> tokens;  // not empty
  size_t shown = 0;             // the first token that is text
  uint64_t seed = 0;
};
struct Prompts {
  std::unique_ptr<Tokenizer> tokenizer;  // none: only ids
  std::vector<Prompt> list;
  int64_t longest = 0;  // tokens

  std::string text_of(const Prompt& prompt, std::span<const int32_t> tokens) const {
    return tokenizer ? tokenizer->decode(tokens.subspan(prompt.shown)) : fmt::format("{}", fmt::join(tokens, " "));
  }
};

Result<std::unique_ptr<Tokenizer>> open_model_tokenizer(const Config& config) {
  auto tokenizer = open_tokenizer(config.data.tokenizer, OtherClass::kWarn);
  if (!tokenizer)
    return usage_error("data.tokenizer: {}; name it with --set data.tokenizer=PATH, or give token ids: --prompt-ids",
                       tokenizer.error().message);
  const int vocab = tokenizer.value()->vocab_size();
  if (vocab > config.model.vocab)
    return usage_error(
        "data.tokenizer: {} has {} tokens, but the model has {}; name the tokenizer that the model was trained with",
        config.data.tokenizer, vocab, config.model.vocab);
  if (vocab != config.model.vocab)
    log_info(
        "data.tokenizer: {} has {} tokens, but the model has {}: check that the model was trained with this tokenizer",
        config.data.tokenizer, vocab, config.model.vocab);
  return tokenizer;
}

// Returns the prompts of the command line. Only rank 0 reads the file. Collective.
Result<std::vector<PromptLine>> read_lines(const GenerateOptions& options, Job& job) {
  if (options.prompts.empty()) return std::vector{PromptLine{.text = options.prompt, .ids = options.prompt_ids}};
  const auto text = job.broadcast(job.world_rank() == 0 ? read_text(options.prompts) : Result<std::string>(""));
  if (!text) return text.error();
  return read_prompt_lines(text.value(), options.prompts);
}

Result<Prompts> encode(const GenerateOptions& options, const std::vector<PromptLine>& lines, const Config& config) {
  Prompts prompts;
  const bool only_ids = std::ranges::none_of(lines, [](const PromptLine& line) { return line.ids.empty(); });
  if (!only_ids || !options.stops.empty()) {
    auto tokenizer = open_model_tokenizer(config);
    if (!tokenizer) return tokenizer.error();
    prompts.tokenizer = std::move(tokenizer).value();
  }
  for (const PromptLine& line : lines) {
    Prompt prompt{.tokens = line.ids, .seed = line.seed.value_or(options.seed)};
    for (const int32_t id : prompt.tokens)
      if (id < 0 || id >= config.model.vocab)
        return usage_error("{}: {} is outside the model's vocabulary of {}",
                           options.prompts.empty() ? "--prompt-ids" : options.prompts + ": \"prompt_ids\"", id,
                           config.model.vocab);
    if (prompt.tokens.empty()) prompt.tokens = prompts.tokenizer->encode(line.text);
    if (prompt.tokens.empty()) {  // starts as if a document began
      prompt.tokens.push_back(prompts.tokenizer->eod());
      prompt.shown = 1;
    }
    prompts.longest = std::max(prompts.longest, static_cast<int64_t>(prompt.tokens.size()));
    prompts.list.push_back(std::move(prompt));
  }
  return prompts;
}

// Prints a growing text. A terminal gets readable characters, a file or a pipe the unchanged bytes.
class Printer {
 public:
  // Prints the part of `text` that it has not printed yet.
  void show(std::string_view text) {
    const std::string_view added = text.substr(printed_);
    print_bytes(terminal_ ? readable_text(added) : std::string(added));
    printed_ = text.size();
  }

 private:
  const bool terminal_ = isatty(STDOUT_FILENO) == 1;
  size_t printed_ = 0;
};

// The answers, on world rank 0: a text as it is generated, or a JSON object per text, in the order of the prompts.
class Answers {
 public:
  Answers(const GenerateOptions& options, const CheckpointJob& loaded, const Prompts& prompts)
      : options_(options), loaded_(loaded), prompts_(prompts) {
    if (is_json()) return;
    const Prompt& prompt = prompts_.list.front();
    shown_ = prompts_.text_of(prompt, prompt.tokens);
    printer_.show(shown_);
  }

  // Shows the final part of the generated text, `final_text`. Without a tokenizer it is empty, and the last id of
  // `generated` is shown.
  void add(std::string_view final_text, std::span<const int32_t> generated) {
    if (is_json()) return;
    if (prompts_.tokenizer == nullptr) {
      shown_ += fmt::format(" {}", generated.back());
      return printer_.show(shown_);
    }
    printer_.show(shown_ + std::string(final_text));
  }

  // `text`: all that is generated, cut before a stop string; without a tokenizer empty.
  void finish(size_t request, std::span<const int32_t> generated, const std::string& text, Finish finish) {
    if (!is_json()) {
      printer_.show(shown_ + text);
      return print_bytes("\n");
    }
    const Prompt& prompt = prompts_.list[request];
    constexpr std::array kNames{"end", "stop", "length"};
    nlohmann::ordered_json object = {{"checkpoint", loaded_.checkpoint.folder},
                                     {"step", loaded_.step},
                                     {"prompt_ids", prompt.tokens},
                                     {"ids", generated},
                                     {"finish", kNames[static_cast<size_t>(finish)]},
                                     {"text", nullptr}};
    // Tokens may end inside a character, which becomes U+FFFD.
    if (prompts_.tokenizer) object["text"] = prompts_.text_of(prompt, prompt.tokens) + text;
    waiting_[request] = std::move(object);
    for (; waiting_.contains(next_); ++next_) {
      print_object(waiting_[next_]);
      waiting_.erase(next_);
    }
  }

 private:
  bool is_json() const { return options_.json || !options_.prompts.empty(); }

  const GenerateOptions& options_;
  const CheckpointJob& loaded_;
  const Prompts& prompts_;
  Printer printer_;
  std::string shown_;                                 // the prompt; without a tokenizer all ids
  std::map<size_t, nlohmann::ordered_json> waiting_;  // finished before the text of an earlier prompt
  size_t next_ = 0;
};

Result<void> generate(const GenerateOptions& options, Job& job, ProcessDeadline& deadline) {
  if (options.quiet) log_quiet();
  for (const std::string& stop : options.stops)
    if (stop.empty()) return usage_error("--stop: the text is empty");
  const auto lines = read_lines(options, job);
  if (!lines) return lines.error();
  Result<Prompts> read = Prompts{};
  Result<void> cached;
  const auto loaded =
      load_checkpoint_config(options.path, options.overrides, options.weights(), job, [&](Config& config) {
        read = encode(options, lines.value(), config);
        if (read) cached = use_cache(config, read.value().longest + options.tokens, job.world_size());
      });
  read = agree(job, std::move(read));
  if (!read) return read.error();
  if (!cached) return cached.error();
  if (!loaded) return loaded.error();
  const Prompts& prompts = read.value();
  const Config& config = loaded.value().job.config;
  deadline.set(config.fault);
  auto device = open_planned_device(loaded.value().job.plan.device, job);
  if (!device) return device.error();
  const WatchedUse watched(loaded.value().job, job, *device.value(), deadline);
  constexpr int64_t kMostRows = 256;
  const int sequences = static_cast<int>(std::min<size_t>(static_cast<size_t>(options.batch), prompts.list.size()));
  auto model = LoadedModel::load(loaded.value().checkpoint, config, loaded.value().job.mesh, job, *device.value(),
                                 cache_size(config, sequences, std::min(kMostRows, prompts.longest)));
  if (!model) return model.error();
  log_info("{}: step {}", loaded.value().checkpoint.folder, loaded.value().step);

  const Tokenizer* tokenizer = prompts.tokenizer.get();
  std::vector<TextRequest> requests;
  for (const Prompt& prompt : prompts.list)
    requests.push_back({prompt.tokens, options.tokens, derive_key(prompt.seed, "generate")});
  std::optional<Answers> answers;
  std::optional<ProgressBar> progress;
  if (job.world_rank() == 0) {
    answers.emplace(options, loaded.value(), prompts);
    if (!options.prompts.empty()) progress.emplace("generate", "text", static_cast<int64_t>(requests.size()));
  }
  std::map<size_t, TextStream> streams;  // [request], of texts that have begun
  const auto stream_of = [&](size_t request) -> TextStream& {
    return streams.try_emplace(request, *tokenizer, prompts.list[request].tokens, options.stops).first->second;
  };
  const GenerationRules rules{
      .sampling = options.sampling,
      .vocab = tokenizer ? tokenizer->vocab_size() : config.model.vocab,
      .end = tokenizer && !options.ignore_end ? tokenizer->eod() : -1,
      .on_token =
          [&](size_t request, std::span<const int32_t> generated) {
            const bool stops = tokenizer && stream_of(request).add(generated.back());
            if (!answers) return stops;
            const std::string_view text = tokenizer ? std::string_view(stream_of(request).text()) : "";
            answers->add(tokenizer ? text.substr(0, stream_of(request).final_bytes()) : text, generated);
            return stops;
          },
      .on_finish =
          [&](size_t request, std::span<const int32_t> generated, Finish finish) {
            if (answers) answers->finish(request, generated, tokenizer ? stream_of(request).text() : "", finish);
            if (progress) progress->add(1);
            streams.erase(request);
          },
      .on_pass = [] { tick_flight_recorder(); }};
  const PhaseScope phase(RunPhase::kSample);
  generate_texts(model.value()->text(), requests, rules);
  return {};
}

}  // namespace

void add_generate_command(Command& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand(
      "generate",
      "Generate text from a checkpoint: [mpirun -n RANKS] trireme generate CHECKPOINT|RUN_DIR --prompt TEXT");
  auto o = std::make_shared<GenerateOptions>();
  command->add_option("checkpoint", o->path, "A step_... folder; or a run's folder: its newest valid checkpoint")
      ->required();
  command->add_flag("--ema", o->ema, kEmaHelp);
  auto* text = command->add_option("--prompt", o->prompt, "Text to continue; default: a new document");
  auto* ids = command
                  ->add_option("--prompt-ids", o->prompt_ids,
                               "Token ids to continue instead of text, separated by commas; prints ids")
                  ->delimiter(',')
                  ->excludes(text);
  command
      ->add_option("--prompts", o->prompts,
                   "File with a JSON object per line: \"prompt\" (text) or \"prompt_ids\", and optionally \"seed\"; "
                   "prints a JSON object per line, in this order")
      ->excludes(text)
      ->excludes(ids);
  command
      ->add_option("--batch", o->batch,
                   "Number of prompts that are continued at the same time; each needs memory for its cache")
      ->check(kCount)
      ->capture_default_str();
  command->add_option("--tokens", o->tokens, "Largest number of tokens to generate")
      ->check(kCount)
      ->capture_default_str();
  command->add_option("--temperature", o->sampling.temperature, "Higher: more varied; 0: always the likeliest token")
      ->check(kNonNegative)
      ->capture_default_str();
  command->add_option("--top-k", o->sampling.top_k, "Sample among this many likeliest tokens; 0: all")
      ->check(kCountOrZero)
      ->capture_default_str();
  command
      ->add_option("--top-p", o->sampling.top_p,
                   "Sample among the smallest set of likeliest tokens whose probabilities add up to this")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "Seed of the sampling; equal seeds give equal texts")->capture_default_str();
  command->add_option("--stop", o->stops, "End a text before this string; repeatable")->excludes(ids);
  command->add_flag("--ignore-end", o->ignore_end, "Continue after the model ends the document");
  command->add_flag("--json", o->json, "Print one JSON object at the end, including the prompt's text");
  command->add_flag("--quiet", o->quiet, "Print only the answer, warnings and errors on the terminal");
  command->add_option(
      "--set", o->overrides,
      "section.key=value, overrides the checkpoint's config; repeatable. If parallel.tp or pp is set, the other is 1 "
      "unless it is set too");
  on_watched_job(command, status, argc, argv,
                 [o](Job& job, ProcessDeadline& deadline) { return generate(*o, job, deadline); });
}

}  // namespace tri
