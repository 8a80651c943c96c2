// trireme generate: text from a checkpoint's model.
#include <fmt/ranges.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/log.h"
#include "io/base/random.h"
#include "io/base/readable_text.h"
#include "lib/config/axis_fields.h"
#include "lib/config/error_list.h"
#include "lib/infer/loaded_model.h"
#include "lib/train/rank_recorder.h"

namespace tri {
namespace {

struct Options {
  std::string path, prompt;
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> overrides;
  int tokens = 200;
  uint64_t seed = 1234;
  Sampling sampling;
  bool ignore_end = false, json = false, quiet = false;
};

// The text before the generated text. The maximum length is known before the model is loaded.
struct Prompt {
  std::unique_ptr<Tokenizer> tokenizer;  // none: only ids
  std::vector<int32_t> tokens;           // not empty
  size_t shown = 0;                      // the first token that is text
};

Result<Prompt> read_prompt(const Options& options, const Config& config) {
  Prompt prompt;
  prompt.tokens = options.prompt_ids;
  for (const int32_t id : prompt.tokens)
    if (id < 0 || id >= config.model.vocab)
      return usage_error("--prompt-ids: {} is outside the model's vocabulary of {}", id, config.model.vocab);
  if (!prompt.tokens.empty()) return prompt;
  auto tokenizer = open_tokenizer(config.data.tokenizer, OtherClass::kWarn);
  if (!tokenizer)
    return usage_error("data.tokenizer: {}; name it with --set data.tokenizer=PATH, or give token ids: --prompt-ids",
                       tokenizer.error().message);
  prompt.tokenizer = std::move(tokenizer).value();
  const int vocab = prompt.tokenizer->vocab_size();
  if (vocab > config.model.vocab)
    return usage_error(
        "data.tokenizer: {} has {} tokens, but the model has {}; name the tokenizer that the model was trained with",
        config.data.tokenizer, vocab, config.model.vocab);
  if (vocab != config.model.vocab)
    log_info(
        "data.tokenizer: {} has {} tokens, but the model has {}: check that the model was trained with this tokenizer",
        config.data.tokenizer, vocab, config.model.vocab);
  prompt.tokens = prompt.tokenizer->encode(options.prompt);
  if (prompt.tokens.empty()) {  // starts as if a document began
    prompt.tokens.push_back(prompt.tokenizer->eod());
    prompt.shown = 1;
  }
  return prompt;
}

// Prints a growing text, except the end that may still change: an incomplete character is held back.
class Printer {
 public:
  explicit Printer(const Prompt& prompt) : prompt_(prompt) {}

  void show(std::span<const int32_t> text, bool complete) {
    std::string all = prompt_.tokenizer ? prompt_.tokenizer->decode(text.subspan(prompt_.shown))
                                        : fmt::format("{}", fmt::join(text, " "));
    if (!complete && prompt_.tokenizer) all.resize(final_bytes(all));
    if (terminal_) all = readable_text(all);  // a file or a pipe gets the unchanged bytes
    if (!all.starts_with(printed_)) return;
    print_bytes(std::string_view(all).substr(printed_.size()));
    printed_ = std::move(all);
  }
  // Prints what has changed since it was printed on separate lines.
  void finish(std::span<const int32_t> text) {
    show(text, true);
    print_bytes("\n");
  }

 private:
  // Returns the bytes before the last character if that is incomplete or represents invalid bytes (U+FFFD).
  static size_t final_bytes(const std::string& text) {
    size_t begin = text.size();
    while (begin > 0 && text.size() - begin < 4 && (text[begin - 1] & 0xC0) == 0x80) --begin;
    if (begin == 0) return text.size();
    const auto lead = static_cast<unsigned char>(text[begin - 1]);
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    const bool whole = text.size() - (begin - 1) >= length;
    return whole && text.compare(begin - 1, 3, "\xEF\xBF\xBD") != 0 ? text.size() : begin - 1;
  }

  const Prompt& prompt_;
  const bool terminal_ = isatty(STDOUT_FILENO) == 1;
  std::string printed_;
};

void print_json(const CheckpointJob& loaded, const Prompt& prompt, std::span<const int32_t> text, int most) {
  const std::span<const int32_t> said = text.subspan(prompt.tokens.size());
  nlohmann::ordered_json object = {{"checkpoint", loaded.checkpoint.folder},
                                   {"step", loaded.step},
                                   {"prompt_ids", prompt.tokens},
                                   {"ids", said},
                                   {"finish", static_cast<int>(said.size()) < most ? "end" : "length"},
                                   {"text", nullptr}};
  if (prompt.tokenizer) object["text"] = prompt.tokenizer->decode(text.subspan(prompt.shown));
  // Tokens may end inside a character, which becomes U+FFFD.
  print_object(object);
}

Result<void> generate(const Options& options, Job& job, ProcessDeadline& deadline) {
  if (options.quiet) log_quiet();
  Result<Prompt> prompt = Prompt{};
  const auto loaded = load_checkpoint_config(options.path, options.overrides, job, [&](Config& config) {
    prompt = read_prompt(options, config);
    if (!prompt) return;
    // Limits the length to that of the text, because each token costs a pass over all of seq_len.
    const ParallelConfig& p = config.parallel;
    const auto longest = static_cast<int64_t>(prompt.value().tokens.size()) + options.tokens;
    const int64_t rows = (longest + p.tp - 1) / p.tp * p.tp;
    config.model.seq_len = static_cast<int>(std::min<int64_t>(config.model.seq_len, rows));
    if (config.model.window > config.model.seq_len) config.model.window = 0;
    config.data.micro_batch = 1;
    config.data.global_batch =
        std::max(1, static_cast<int>(job.world_size() / ranks_along(AxisSet::outside({"dp"}), p)));
  });
  prompt = agree(job, std::move(prompt));
  if (!prompt) return prompt.error();
  if (!loaded) return loaded.error();
  const Config& config = loaded.value().job.config;
  deadline.set(config.fault);
  auto device = open_planned_device(loaded.value().job.plan.device, job);
  if (!device) return device.error();
  const WatchedUse watched(loaded.value().job, job, *device.value(), deadline);
  auto model = LoadedModel::load(loaded.value().checkpoint, config, loaded.value().job.mesh, job, *device.value());
  if (!model) return model.error();
  log_info("{}: step {}", loaded.value().checkpoint.folder, loaded.value().step);

  const Tokenizer* tokenizer = prompt.value().tokenizer.get();
  Printer printer(prompt.value());
  Generation generation{.tokens = options.tokens,
                        .sampling = options.sampling,
                        .key = derive_key(options.seed, "generate"),
                        .vocab = tokenizer ? tokenizer->vocab_size() : config.model.vocab,
                        .stop = tokenizer && !options.ignore_end ? tokenizer->eod() : -1};
  const bool speaks = job.world_rank() == 0;
  generation.on_token = [&](std::span<const int32_t> text) {
    tick_flight_recorder();
    if (speaks && !options.json) printer.show(text, false);
  };
  const PhaseScope phase(RunPhase::kSample);
  const auto text = model.value()->evaluator().generate(prompt.value().tokens, generation);
  if (speaks && options.json)
    print_json(loaded.value(), prompt.value(), text, options.tokens);
  else if (speaks)
    printer.finish(text);
  return {};
}

}  // namespace

void add_generate_command(Command& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand(
      "generate",
      "Generate text from a checkpoint: [mpirun -n RANKS] trireme generate CHECKPOINT|RUN_DIR --prompt TEXT");
  auto o = std::make_shared<Options>();
  command->add_option("checkpoint", o->path, "A step_... folder; or a run's folder: its newest valid checkpoint")
      ->required();
  auto* text = command->add_option("--prompt", o->prompt, "Text to continue; default: a new document");
  command
      ->add_option("--prompt-ids", o->prompt_ids,
                   "Token ids to continue instead of text, separated by commas; prints ids")
      ->delimiter(',')
      ->excludes(text);
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
                   "Sample among the fewest of those tokens that hold this much of the probability")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "Equal seeds give equal texts")->capture_default_str();
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
