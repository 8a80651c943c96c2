// trireme data: converts text to token files, trains tokenizers, and inspects both.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "app/commands.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/progress.h"
#include "io/tokens/loss_mask.h"
#include "io/tokens/prepare.h"
#include "io/tokens/token_file.h"
#include "io/tokens/tokenizer.h"
#include "lib/config/config.h"
#include "lib/data/chat_template.h"
#include "lib/observe/status/order_report.h"
#include "lib/train/inputs.h"

namespace tri {
namespace {

// Returns "12.5 % of the tokens are trained as targets".
std::string trained_share(int64_t trained, int64_t tokens) {
  return fmt::format("{:.1f} % of the tokens are trained as targets",
                     100.0 * static_cast<double>(trained) / static_cast<double>(std::max<int64_t>(tokens, 1)));
}

void print_summary(const PrepareSummary& s, bool json) {
  if (s.resumed > 0) log_info("continued after {} of an interrupted run", counted(s.resumed, "document"));
  if (s.passed_over > 0) log_info("ignored {} without a known text extension", counted(s.passed_over, "file"));
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const PrepareSummary::Output& output : s.outputs) {
    if (json) {
      outputs.push_back({{"prefix", output.prefix},
                         {"documents", output.documents},
                         {"tokens", output.tokens},
                         {"text_bytes", output.text_bytes}});
      if (output.trained_tokens) outputs.back()["trained_tokens"] = *output.trained_tokens;
      continue;
    }
    const std::string trained =
        output.trained_tokens ? ", " + trained_share(*output.trained_tokens, output.tokens) : "";
    print_out("{}: {}, {} of a vocabulary of {}, from {} of text{}\n", output.prefix,
              counted(output.documents, "document"), counted(output.tokens, "token"), s.vocab,
              counted(output.text_bytes, "byte"), trained);
  }
  if (s.skipped > 0) log_warn("skipped {}", counted(s.skipped, "bad document"));
  if (!json) return;
  const nlohmann::ordered_json object = {{"outputs", outputs},
                                         {"vocab", s.vocab},
                                         {"resumed", s.resumed},
                                         {"passed_over", s.passed_over},
                                         {"skipped", s.skipped}};
  print_object(object);
}

int available_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void add_prepare(Command& data, int& status) {
  auto* command = data.add_subcommand("prepare", "Tokenize text into PREFIX.bin and PREFIX.idx (Megatron's format)");
  auto options = std::make_shared<PrepareOptions>();
  options->threads = available_threads();
  auto format = std::make_shared<std::string>("auto");
  auto force = std::make_shared<bool>(false);
  auto splits = std::make_shared<std::string>();
  auto skip_bad = std::make_shared<std::string>("0");
  command
      ->add_option("inputs", options->inputs,
                   "Text files in UTF-8, plain or compressed (gzip, zstd); folders of them; patterns ('*.jsonl.gz')")
      ->required();
  command->add_option("--output", options->output, "PREFIX of the files to write; its folder is created if missing")
      ->required();
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "bytes, or the path of a tokenizer.json, a .tiktoken, a SentencePiece model, or a folder with one")
      ->capture_default_str();
  command
      ->add_option(
          "--format", *format,
          "text: each file is a document; lines: each line is one; jsonl: each line is a JSON object; auto: by file "
          "name (.txt, .text, .md: text; .jsonl, .ndjson, .json: jsonl)")
      ->check(choice_of({"auto", "text", "lines", "jsonl"}))
      ->capture_default_str();
  auto* const field = command
                          ->add_option("--field,--text-field", options->text_field,
                                       "jsonl: the field that holds the text, or with --chat the messages; a.b in "
                                       "nested objects")
                          ->capture_default_str();
  auto chat = std::make_shared<std::string>();
  command
      ->add_option("--chat,--mask", *chat,
                   "jsonl: each line is a conversation (messages with role and content, and similar forms). The YAML "
                   "file TEMPLATE gives the text around the messages of each role, and the roles that are trained: "
                   "also write PREFIX.mask")
      ->type_name("TEMPLATE");
  command->add_option(
      "--split", *splits,
      "NAME:SHARE,...: write shares of the documents (train:0.99,val:0.01) to separate files, PREFIX_NAME; a "
      "document's share depends only on its text");
  command
      ->add_option("--skip-bad", *skip_bad,
                   "Skip bad lines (files if the format is text): at most this many (100), or this share of all "
                   "(0.001), checked at the end; PREFIX.json has their count")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Number of tokenizing threads; does not change the result")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  command->add_flag("--force", *force, "Overwrite existing output");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  on_run(command, status, [options, format, force, splits, skip_bad, json, chat, field]() -> Result<void> {
    if (!chat->empty()) {
      auto read = read_chat_template(*chat);
      if (!read) return read.error();
      options->chat = std::move(read).value();
      if (field->count() > 0) options->chat->field = options->text_field;
    }
    if (!splits->empty()) {
      auto parsed = parse_splits(*splits);
      if (!parsed) return parsed.error();
      options->splits = std::move(parsed).value();
    }
    const auto skipped = parse_skip_bad(*skip_bad);
    if (!skipped) return skipped.error();
    options->skip_bad = skipped.value();
    options->format = enum_from_name<TextFormat>(*format);  // none: auto
    options->existing = *force ? Existing::kOverwrite : Existing::kRefuse;
    auto summary = prepare(*options);
    if (!summary) return summary.error();
    print_summary(summary.value(), *json);
    return {};
  });
}

void add_train_tokenizer(Command& data, int& status) {
  auto* command = data.add_subcommand("train-tokenizer", "Train a SentencePiece BPE model with byte fallback");
  auto options = std::make_shared<TokenizerTraining>();
  options->threads = available_threads();
  command->add_option("inputs", options->inputs, "Text files")->required();
  command->add_option("--output", options->model_path, "Model to write; its name ends in .model")->required();
  command->add_option("--vocab", options->vocab_size, "Number of pieces, including the 256 bytes")
      ->check(in_range(300, 1000000))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Number of training threads")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  on_run(command, status, [options]() -> Result<void> {
    if (auto done = train_tokenizer(*options); !done) return done;
    auto tokenizer = open_tokenizer(options->model_path);
    if (!tokenizer) return tokenizer.error();
    const int pieces = tokenizer.value()->vocab_size();
    print_out("{}: {} pieces{}\n", options->model_path, pieces,
              pieces < options->vocab_size
                  ? fmt::format(", fewer than --vocab {}: the text does not yield more", options->vocab_size)
                  : "");
    return {};
  });
}

// Makes control characters visible, so that a sample stays on one line.
std::string printable(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\n')
      shown += "\\n";
    else if (static_cast<unsigned char>(c) < 32 || c == 127)
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      shown += c;
  }
  return shown;
}

// Returns the text of the tokens, or their ids if there is no tokenizer. `trained` is empty, or holds 1 for each token
// that is trained, which is shown in [[ ]].
std::string shown_tokens(std::span<const int32_t> tokens, std::span<const uint8_t> trained,
                         const Tokenizer* tokenizer) {
  const auto text_of = [&](std::span<const int32_t> part) {
    return tokenizer != nullptr ? printable(tokenizer->decode(part)) : fmt::format("{}", fmt::join(part, " "));
  };
  if (trained.empty()) return text_of(tokens);
  std::string shown;
  for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    while (end < tokens.size() && trained[end] == trained[begin]) ++end;
    const std::string text = text_of(tokens.subspan(begin, end - begin));
    shown += trained[begin] != 0 ? "[[" + text + "]]" : text;
  }
  return shown;
}

struct InspectOptions {
  std::string prefix, tokenizer;
  int samples = 3, length = 40;
  bool json = false;
};

Result<void> inspect(const InspectOptions& options) {
  auto opened = TokenFile::open(options.prefix);
  if (!opened) return opened.error();
  const TokenFile& file = opened.value();
  const auto documents = DocumentIndex::open(options.prefix);
  if (!documents) return documents.error();
  std::unique_ptr<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    auto made = open_tokenizer(options.tokenizer, OtherClass::kWarn);
    if (!made) return made.error();
    tokenizer = std::move(made).value();
    const auto origin = prepared_with(options.prefix);
    if (!origin) return origin.error();
    if (!origin.value().fingerprint.empty() && origin.value().fingerprint != tokenizer->fingerprint())
      log_warn("{}: prepared with the tokenizer {}; the given tokenizer, {}, would decode its tokens to different text",
               options.prefix, origin.value().tokenizer, options.tokenizer);
  }
  const auto mask = LossMask::open(file);
  if (!mask) return mask.error();
  int32_t largest = 0;
  std::vector<int32_t> block(1 << 16);
  for (int64_t at = 0; at < file.num_tokens(); at += static_cast<int64_t>(block.size())) {
    const auto count =
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(block.size()), file.num_tokens() - at));
    file.read(at, std::span(block).first(count));
    largest = std::max(largest, *std::max_element(block.begin(), block.begin() + static_cast<int64_t>(count)));
  }
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  if (!options.json)
    print_out("{}: {}, {}, {} of {}; largest token {}\n", options.prefix, counted(file.num_documents(), "document"),
              counted(file.num_sequences(), "sequence"), counted(file.num_tokens(), "token"),
              counted(token_bytes(file.type()), "byte"), largest);
  if (!options.json && mask.value())
    print_out("{}, shown in [[ ]]\n", trained_share(mask.value()->num_trained(), file.num_tokens()));
  const int64_t shown = std::min<int64_t>(options.samples, file.num_documents());
  for (int64_t i = 0; i < shown; ++i) {
    const int64_t document = i * file.num_documents() / shown;  // spread over the file
    const int64_t first = documents.value().document_start(document);
    const int64_t end = documents.value().document_start(document + 1);
    std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(options.length, end - first)));
    file.read(first, tokens);
    std::vector<uint8_t> trained(mask.value() ? tokens.size() : 0);
    if (mask.value()) mask.value()->read(first, trained);
    if (options.json) {
      samples.push_back({{"document", document}, {"tokens", end - first}, {"ids", tokens}, {"text", nullptr}});
      if (mask.value()) samples.back()["trained"] = trained;
      if (tokenizer) samples.back()["text"] = tokenizer->decode(tokens);
      continue;
    }
    const std::string text = shown_tokens(tokens, trained, tokenizer.get());
    print_out("document {}, {}: {}{}\n", document, counted(end - first, "token"), text,
              end - first > options.length ? " …" : "");
  }
  if (!options.json) return {};
  nlohmann::ordered_json object = {
      {"prefix", options.prefix},    {"documents", file.num_documents()},       {"sequences", file.num_sequences()},
      {"tokens", file.num_tokens()}, {"token_bytes", token_bytes(file.type())}, {"largest_token", largest},
      {"samples", samples}};
  if (mask.value()) object["trained_tokens"] = mask.value()->num_trained();
  // Tokens may end inside a character, which becomes U+FFFD.
  print_object(object);
  return {};
}

void add_inspect(Command& data, int& status) {
  auto* command = data.add_subcommand("inspect", "Print counts and decoded samples of a token file");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("prefix", options->prefix, "PREFIX of .bin and .idx")->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "bytes, or the path of a tokenizer.json, .tiktoken or SentencePiece model; default: print ids");
  command->add_option("--samples", options->samples, "Documents to show")->check(kCountOrZero)->capture_default_str();
  command->add_option("--length", options->length, "Tokens to show of each")->check(kCount)->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  on_run(command, status, [options] { return inspect(*options); });
}

void add_verify(Command& data, int& status) {
  auto* command = data.add_subcommand("verify", "Check a token file's structure and every token against a vocabulary");
  auto prefix = std::make_shared<std::string>();
  auto vocab = std::make_shared<int>(0);
  command->add_option("prefix", *prefix, "PREFIX of .bin and .idx")->required();
  command->add_option("--vocab", *vocab, "Size of the vocabulary; default: the one in PREFIX.json")->check(kCount);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  on_run(command, status, [prefix, vocab, json]() -> Result<void> {
    auto file = TokenFile::open(*prefix);
    if (!file) return file.error();
    const auto documents = DocumentIndex::open(*prefix);
    if (!documents) return documents.error();
    if (auto checked = documents.value().check(); !checked) return checked;
    const auto mask = LossMask::open(file.value());
    if (!mask) return mask.error();
    if (mask.value())
      if (auto checked = mask.value()->check(); !checked) return checked;
    if (*vocab == 0) {
      const auto origin = prepared_with(*prefix);
      if (!origin) return origin.error();
      *vocab = origin.value().vocab;
      if (*vocab == 0)
        return usage_error(
            "{}: no {}.json gives the size of its vocabulary, as for data prepared by other programs; give --vocab",
            *prefix, *prefix);
    }
    const int64_t total = file.value().num_tokens(), stride = int64_t{1} << 24;
    ProgressBar progress("verifying", "token", total);
    for (int64_t at = 0; at < total; at += stride) {
      const int64_t end = std::min(total, at + stride);
      if (auto checked = file.value().check_range(at, end, *vocab); !checked) return checked;
      progress.add(end - at);
    }
    const nlohmann::ordered_json object = {{"prefix", *prefix}, {"tokens", total}, {"vocab", *vocab}};
    if (*json)
      print_object(object);
    else
      print_out("{}: {}, all inside a vocabulary of {}\n", *prefix, counted(total, "token"), *vocab);
    return {};
  });
}

struct OrderCommand {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

Result<void> order(const OrderCommand& options) {
  auto text = read_config_text(options.config);
  if (!text) return text.error();
  auto parsed = parse_config(text.value(), options.config, options.overrides);
  if (!parsed) return parsed.error();
  if (parsed.value().parallel.dp == 0) parsed.value().parallel.dp = 1;  // the order is the same on any ranks
  const auto ranks = planned_ranks(parsed.value(), 0);
  if (!ranks) return ranks.error();
  const auto config = resolve_config(std::move(parsed).value(), ranks.value());
  if (!config) return config.error();
  Inputs inputs;
  if (auto opened = open_inputs(config.value(), inputs); !opened) return opened;
  if (options.json)
    print_answer(order_json(config.value(), inputs.order));
  else
    print_out("{}", order_report(config.value(), inputs.order));
  return {};
}

void add_order(Command& data, int& status) {
  auto* command =
      data.add_subcommand("order", "Print what each source contributes to a run, by stage: samples, epochs");
  auto options = std::make_shared<OrderCommand>();
  command->add_option("config", options->config, "YAML run config")->required();
  command->add_option("--set", options->overrides, "section.key=value; repeatable");
  command->add_flag("--json", options->json, "Print one JSON object");
  on_run(command, status, [options] { return order(*options); });
}

}  // namespace

void add_data_command(Command& app, int& status) {
  auto* data = app.add_subcommand("data", "Prepare and inspect training data");
  data->require_subcommand(1);
  add_prepare(*data, status);
  add_train_tokenizer(*data, status);
  add_inspect(*data, status);
  add_verify(*data, status);
  add_order(*data, status);
}

}  // namespace tri
