#include "io/tokens/tokenizer.h"

#include <fmt/ranges.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/log.h"
#include "io/base/random.h"
#include "io/tokens/bpe/bpe_tokenizer.h"
#include "io/tokens/text_reader.h"
#include "io/tokens/training_lines.h"

namespace tri {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens)
      if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
    return text;
  }
  int vocab_size() const override { return 257; }
  int32_t eod() const override { return 256; }
  int token_bytes(int32_t token) const override { return token >= 0 && token < 256 ? 1 : 0; }
  std::string fingerprint() const override { return "bytes"; }
};

// SentencePiece escapes spaces as U+2581 (three bytes) inside pieces.
int bytes_of_piece(const std::string& piece) {
  int count = 0;
  for (size_t i = 0; i < piece.size();) {
    const bool space = piece.compare(i, 3, "\xe2\x96\x81") == 0;
    count += 1;
    i += space ? 3 : 1;
  }
  return count;
}

// Returns why there is no tokenizer at `path`, and what may be there.
Error unopened(const std::string& path, Error error) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return file_error("{}: contains no tokenizer: no tokenizer.json, tokenizer.model or .tiktoken", path);
  if (error.os_error == ENOENT)
    error.message += "; a tokenizer is bytes or a local path: names on Hugging Face's Hub are not downloaded";
  return error;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> open(const std::string& path) {
    auto file = MappedFile::open(path);
    if (!file) return unopened(path, file.error());
    auto tokenizer = std::make_unique<SentencePieceTokenizer>();
    const std::string_view model = file.value().text();
    if (!tokenizer->processor_.LoadFromSerializedProto(model).ok())
      return file_error(
          "{}: not a SentencePiece model; other tokenizers are recognized by their extensions: .json, .tiktoken", path);
    tokenizer->fingerprint_ = fmt::format("sentencepiece:{:016x}", derive_key(0, model));
    const auto& processor = tokenizer->processor_;
    tokenizer->eod_ = processor.eos_id();
    if (tokenizer->eod_ < 0)
      return file_error(
          "{}: the model has no </s> to end documents with; train one with `trireme data train-tokenizer`", path);
    for (int id = 0; id < processor.GetPieceSize(); ++id) {
      int bytes = bytes_of_piece(processor.IdToPiece(id));
      if (processor.IsControl(id) || processor.IsUnused(id) || processor.IsUnknown(id)) bytes = 0;
      if (processor.IsByte(id)) bytes = 1;
      tokenizer->bytes_.push_back(bytes);
    }
    return std::unique_ptr<Tokenizer>(std::move(tokenizer));
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    TRI_REQUIRE(status.ok(), "SentencePiece: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string decode(std::span<const int32_t> tokens) const override {
    std::vector<int> ids;
    for (const int32_t token : tokens)
      if (token >= 0 && token < vocab_size() && !processor_.IsControl(token)) ids.push_back(token);
    std::string text;
    const auto status = processor_.Decode(ids, &text);
    TRI_REQUIRE(status.ok(), "SentencePiece: {}", status.ToString());
    return text;
  }
  int vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t eod() const override { return eod_; }
  int token_bytes(int32_t token) const override {
    return token >= 0 && token < vocab_size() ? bytes_[static_cast<size_t>(token)] : 0;
  }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::string fingerprint_;
  int32_t eod_ = -1;
  std::vector<int> bytes_;  // [token]
};

// Checks by its name and its beginning that a file can be used for training.
Result<void> check_training_text(const std::string& path) {
  constexpr int64_t kLooked = 1 << 20;
  auto reader = TextReader::open(path);
  if (!reader) return reader.error();
  if (const auto format = format_of(path); format && format.value() == TextFormat::kJsonl)
    return usage_error("{}: is JSON, but training a tokenizer needs plain text; extract the text first", path);
  std::string block;
  if (auto got = reader.value().next_lines(kLooked, block); !got) return got;
  if (const auto encoding = foreign_encoding(block); !encoding.empty())
    return file_error("{}: not UTF-8 text: its byte order mark is that of {}; convert it (iconv -t UTF-8)", path,
                      encoding);
  TextCheck check(path);
  if (auto text = check.add(faults_of(block)); !text) return text;
  return check.finish();
}

// Returns the folder's .tiktoken files in the order of their names; none if it cannot be read.
std::vector<std::string> tiktoken_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code problem;
  for (auto at = std::filesystem::directory_iterator(folder, problem);
       !problem && at != std::filesystem::directory_iterator(); at.increment(problem))
    if (at->path().extension() == ".tiktoken") files.push_back(at->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string tokenizer_file(const std::string& spec) {
  std::error_code ignored;  // an unreadable path is refused when it is opened
  if (!std::filesystem::is_directory(spec, ignored)) return spec;
  const std::string model = (std::filesystem::path(spec) / "tokenizer.model").string();
  const std::string json = (std::filesystem::path(spec) / "tokenizer.json").string();
  const auto file = MappedFile::open(model);
  if (file && file.value().text().starts_with('\n')) return model;  // the first field of a protocol buffer
  if (std::filesystem::exists(json, ignored)) return json;
  if (file) return model;
  const auto files = tiktoken_files(spec);
  return files.size() == 1 ? files.front() : spec;
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& spec, OtherClass other_class) {
  if (spec == "bytes") return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  const std::string path = tokenizer_file(spec);
  if (const auto files = tiktoken_files(path); files.size() > 1)
    return file_error("{}: contains {} .tiktoken files; name one of them: {}", path, files.size(),
                      fmt::join(files, ", "));
  if (path.ends_with(".json")) return open_tokenizer_json(path, other_class);
  if (is_tiktoken_file(path)) return open_tiktoken(path);
  return SentencePieceTokenizer::open(path);
}

Result<void> train_tokenizer(const TokenizerTraining& t) {
  if (!t.model_path.ends_with(".model"))
    return usage_error("--output {}: a tokenizer's name must end in .model", t.model_path);
  for (const std::string& input : t.inputs)
    if (auto text = check_training_text(input); !text) return text;
  TrainingLines lines(t.inputs);
  std::string model;
  // Lossless: text is unchanged (no normalisation, no space added or removed), and newlines are tokens.
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"vocab_size", std::to_string(t.vocab_size)},
                                                  {"model_type", "bpe"},
                                                  {"byte_fallback", "true"},
                                                  {"character_coverage", "0.9995"},
                                                  {"normalization_rule_name", "identity"},
                                                  {"remove_extra_whitespaces", "false"},
                                                  {"add_dummy_prefix", "false"},
                                                  {"split_digits", "true"},
                                                  {"allow_whitespace_only_pieces", "true"},
                                                  {"max_sentence_length", std::to_string(TrainingLines::kLongest)},
                                                  {"hard_vocab_limit", "false"},
                                                  {"num_threads", std::to_string(t.threads)},
                                                  {"minloglevel", "1"}},
                                                 &lines, &model);
  if (lines.error()) return *lines.error();
  if (!lines.any()) return file_error("{}: the inputs contain no text", fmt::join(t.inputs, ", "));
  if (!status.ok()) return usage_error("tokenizer training: {}", status.ToString());
  if (lines.num_split_words() > 0)
    log_warn("{}: {} of more than {} bytes without a space; training splits them", fmt::join(t.inputs, ", "),
             counted(lines.num_split_words(), "word"), TrainingLines::kLongest);
  return write_file(t.model_path, model);
}

}  // namespace tri
