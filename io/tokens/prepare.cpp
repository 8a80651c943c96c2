#include "io/tokens/prepare.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "io/base/file.h"
#include "io/base/progress.h"
#include "io/tokens/token_file.h"

namespace tri {
namespace {

struct Input {
  const std::string& path;
  TextFormat format;
};

// What one task tokenizes: whole lines, or a whole file.
struct Block {
  const Input* input = nullptr;
  std::string text;
  int64_t first_line = 1;
};

struct Encoded {
  std::vector<std::vector<int32_t>> documents;
  int64_t text_bytes = 0;  // of the documents
  TextFaults faults;       // of the block
  std::optional<Error> error;
};

constexpr int64_t kBlockBytes = 1 << 20;

// The blocks of all inputs, in order.
class Blocks {
 public:
  Blocks(const std::vector<Input>& inputs, ProgressBar& progress) : inputs_(inputs), progress_(progress) {}

  // False behind the last.
  Result<bool> next(Block& block) {
    while (true) {
      if (!reader_) {
        if (at_ == inputs_.size()) return false;
        auto opened = TextReader::open(inputs_[at_].path);
        if (!opened) return opened.error();
        reader_.emplace(std::move(opened).value());
        line_ = 1;
      }
      const int64_t before = reader_->consumed();
      block.input = &inputs_[at_];
      block.first_line = line_;
      const bool whole = block.input->format == TextFormat::kText;
      if (auto got = whole ? reader_->rest(block.text) : reader_->next_lines(kBlockBytes, block.text); !got)
        return got.error();
      progress_.add(reader_->consumed() - before);
      if (!block.text.empty()) {
        line_ += std::count(block.text.begin(), block.text.end(), '\n');
        return true;
      }
      reader_.reset();
      ++at_;
    }
  }

 private:
  const std::vector<Input>& inputs_;
  ProgressBar& progress_;
  size_t at_ = 0;
  std::optional<TextReader> reader_;  // of inputs_[at_]
  int64_t line_ = 1;
};

Result<std::string> document_of_line(std::string_view line, TextFormat format, const PrepareOptions& options) {
  if (format == TextFormat::kLines) return std::string(line);
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded()) return file_error("not valid JSON");
  if (!object.is_object()) return file_error("a JSON {}, expected an object", object.type_name());
  const auto field = object.find(options.text_field);
  if (field == object.end())
    return file_error("no field \"{}\"; name the text's field with --text-field", options.text_field);
  if (!field->is_string())
    return file_error("field \"{}\" is a {}, expected a string", options.text_field, field->type_name());
  return field->get<std::string>();
}

Encoded encode_block(const Block& block, const PrepareOptions& options, const Tokenizer& tokenizer) {
  Encoded result{.faults = faults_of(block.text)};
  const auto add = [&](std::string_view text) {
    result.text_bytes += static_cast<int64_t>(text.size());
    result.documents.push_back(tokenizer.encode(text));
    result.documents.back().push_back(tokenizer.eod());
  };
  if (block.input->format == TextFormat::kText) {
    add(block.text);
    return result;
  }
  int64_t number = block.first_line;
  for (std::string_view rest = block.text; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto document = document_of_line(line, block.input->format, options);
    if (!document) {
      result.error = file_error("{}:{}: {}", block.input->path, number, document.error().message);
      return result;
    }
    if (!document.value().empty()) add(document.value());
  }
  return result;
}

// On `threads` threads; the results are in the order of the blocks.
std::vector<Encoded> encode_blocks(const std::vector<Block>& blocks, const PrepareOptions& options,
                                   const Tokenizer& tokenizer, size_t threads) {
  std::vector<Encoded> encoded(blocks.size());
  std::atomic<size_t> next{0};
  std::vector<std::jthread> workers;
  for (size_t t = 0; t < std::min(threads, blocks.size()); ++t)
    workers.emplace_back([&] {
      for (size_t i = next++; i < blocks.size(); i = next++) {
        try {
          encoded[i] = encode_block(blocks[i], options, tokenizer);
        } catch (const std::exception& problem) {
          encoded[i].error = file_error("{}: {}", blocks[i].input->path, problem.what());
        }
      }
    });
  workers.clear();  // joins them
  return encoded;
}

// Every input's format; all can be opened. Their bytes are added to `bytes`.
Result<std::vector<Input>> check_inputs(const PrepareOptions& options, int64_t& bytes) {
  std::vector<Input> inputs;
  for (const std::string& path : options.inputs) {
    const Result<TextFormat> format = options.format ? Result<TextFormat>(*options.format) : format_of(path);
    if (!format) return format.error();
    const auto reader = TextReader::open(path);
    if (!reader) return reader.error();
    bytes += reader.value().file_bytes();
    inputs.push_back({path, format.value()});
  }
  return inputs;
}

Result<void> check_output(const PrepareOptions& options) {
  if (options.existing == Existing::kOverwrite) return {};
  std::error_code ignored;  // a folder that can't be looked into can't be written into
  for (const char* extension : {".bin", ".idx", ".json"})
    if (const std::string path = options.output + extension; std::filesystem::exists(path, ignored))
      return usage_error("{}: is there already; overwrite it with --force, or give another --output", path);
  return {};
}

// The token file, and the sidecar that belongs to it. At no moment does a sidecar stand beside tokens of another file.
Result<void> put_in_place(TokenFileWriter& tokens, const std::string& path, const std::string& sidecar) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  file.value().write(sidecar.data(), sidecar.size());
  if (auto written = file.value().flush(); !written) return written;
  std::error_code problem;
  std::filesystem::remove(path, problem);  // of the output that is overwritten
  if (problem) return system_error(problem.value(), "{}: removing it", path);
  if (auto done = tokens.finish(); !done) return done;
  return file.value().commit();
}

// "jsonl", or "jsonl, text" where inputs differ.
std::string formats_of(const std::vector<Input>& inputs) {
  std::set<std::string_view> names;
  for (const Input& input : inputs) names.insert(enum_name(input.format));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Result<std::string> prepared_with(const std::string& prefix) {
  const std::string path = prefix + ".json";
  auto file = MappedFile::open(path);
  if (!file && file.error().os_error == ENOENT) return std::string();
  if (!file) return file.error();
  const auto sidecar = nlohmann::json::parse(file.value().text(), nullptr, false);
  if (!sidecar.is_object() || !sidecar.contains("fingerprint") || !sidecar["fingerprint"].is_string())
    return file_error("{}: does not say which tokenizer made {}.bin; prepare it again, or remove this file", path,
                      prefix);
  return sidecar["fingerprint"].get<std::string>();
}

Result<PrepareSummary> prepare(const PrepareOptions& options) {
  if (options.inputs.empty()) return usage_error("prepare needs at least one input file");
  auto opened = open_tokenizer(options.tokenizer);
  if (!opened) return opened.error();
  const Tokenizer& tokenizer = *opened.value();

  if (auto free = check_output(options); !free) return free.error();
  int64_t input_bytes = 0;
  const auto inputs = check_inputs(options, input_bytes);
  if (!inputs) return inputs.error();
  auto created = TokenFileWriter::create(options.output, token_type_for(tokenizer.vocab_size()));
  if (!created) return created.error();
  TokenFileWriter writer = std::move(created).value();

  // Rounds of a few blocks a thread: tokenized in parallel, written in order, so memory is bounded and the order fixed.
  ProgressBar progress("tokenizing", "B", input_bytes);
  PrepareSummary summary{.vocab = tokenizer.vocab_size()};
  const size_t threads = static_cast<size_t>(std::max(options.threads, 1));
  Blocks stream(inputs.value(), progress);
  std::optional<TextCheck> check;  // of the input that is being written
  const Input* current = nullptr;
  const auto finish_input = [&]() -> Result<void> {
    if (!check) return {};
    summary.text_faults += check->faults();
    return check->finish();
  };
  for (bool more = true; more;) {
    std::vector<Block> blocks;
    int64_t bytes = 0;
    while (more && (blocks.size() < threads || bytes < static_cast<int64_t>(threads) * 4 * kBlockBytes)) {
      Block block;
      auto got = stream.next(block);
      if (!got) return got.error();
      more = got.value();
      bytes += static_cast<int64_t>(block.text.size());
      if (more) blocks.push_back(std::move(block));
    }
    const std::vector<Encoded> encoded = encode_blocks(blocks, options, tokenizer, threads);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].input != current) {
        if (auto done = finish_input(); !done) return done.error();
        current = blocks[i].input;
        check.emplace(current->path);
      }
      if (auto text = check->add(encoded[i].faults); !text) return text.error();
      if (encoded[i].error) return *encoded[i].error;
      summary.text_bytes += encoded[i].text_bytes;
      for (const auto& document : encoded[i].documents) writer.add_document(document);
    }
  }
  if (auto done = finish_input(); !done) return done.error();
  summary.documents = writer.num_documents();
  summary.tokens = writer.num_tokens();
  if (summary.documents == 0) return file_error("{}: no text in the inputs", options.output);
  const nlohmann::ordered_json sidecar = {{"tokenizer", options.tokenizer},
                                          {"fingerprint", tokenizer.fingerprint()},
                                          {"vocab", summary.vocab},
                                          {"documents", summary.documents},
                                          {"tokens", summary.tokens},
                                          {"text_bytes", summary.text_bytes},
                                          {"format", formats_of(inputs.value())}};
  if (auto done = put_in_place(writer, options.output + ".json", sidecar.dump(2) + "\n"); !done) return done.error();
  return summary;
}

}  // namespace tri
