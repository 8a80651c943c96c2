#include "io/tokens/prepare.h"

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "io/base/file.h"
#include "io/base/progress.h"
#include "io/tokens/token_file.h"

namespace tri {
namespace {

// A stretch of a file that one task tokenizes: whole lines, or the whole file.
struct Piece {
  std::string_view text;
  const std::string* path;
  int64_t first_line;  // 1-based
};

struct Encoded {
  std::vector<std::vector<int32_t>> documents;
  int64_t text_bytes = 0;  // of the documents
  std::optional<Error> error;
};

constexpr size_t kPieceBytes = size_t{1} << 20;

// Cuts at line ends, about kPieceBytes each.
void cut_lines(std::string_view text, const std::string& path, std::vector<Piece>& pieces) {
  int64_t line = 1;
  while (!text.empty()) {
    const size_t newline = text.size() <= kPieceBytes ? std::string_view::npos : text.find('\n', kPieceBytes);
    const std::string_view piece = text.substr(0, newline == std::string_view::npos ? text.size() : newline + 1);
    pieces.push_back({piece, &path, line});
    line += std::count(piece.begin(), piece.end(), '\n');
    text.remove_prefix(piece.size());
  }
}

Result<std::string> document_of_line(std::string_view line, const PrepareOptions& options) {
  if (options.format == TextFormat::kLines) return std::string(line);
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

Encoded encode_piece(const Piece& piece, const PrepareOptions& options, const Tokenizer& tokenizer) {
  Encoded result;
  const auto add = [&](std::string_view text) {
    result.text_bytes += static_cast<int64_t>(text.size());
    result.documents.push_back(tokenizer.encode(text));
    result.documents.back().push_back(tokenizer.eod());
  };
  if (options.format == TextFormat::kText) {
    if (!piece.text.empty()) add(piece.text);
    return result;
  }
  int64_t number = piece.first_line;
  for (std::string_view rest = piece.text; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto document = document_of_line(line, options);
    if (!document) {
      result.error = file_error("{}:{}: {}", *piece.path, number, document.error().message);
      return result;
    }
    if (!document.value().empty()) add(document.value());
  }
  return result;
}

}  // namespace

Result<std::string> prepared_with(const std::string& prefix) {
  const std::string path = prefix + ".json";
  auto file = MappedFile::open(path);
  if (!file) return std::string();
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

  std::vector<MappedFile> files;
  std::vector<Piece> pieces;
  int64_t input_bytes = 0;
  for (const std::string& path : options.inputs) {
    auto file = MappedFile::open(path);
    if (!file) return file.error();
    files.push_back(std::move(file).value());
    const std::string_view text = files.back().text();
    input_bytes += static_cast<int64_t>(text.size());
    if (options.format == TextFormat::kText)
      pieces.push_back({text, &path, 1});
    else
      cut_lines(text, path, pieces);
  }
  auto created = TokenFileWriter::create(options.output, token_type_for(tokenizer.vocab_size()));
  if (!created) return created.error();
  TokenFileWriter writer = std::move(created).value();

  // Rounds of a few pieces a thread: tokenized in parallel, written in order, so memory is bounded and the order fixed.
  ProgressBar progress("tokenizing", "B", input_bytes);
  PrepareSummary summary{.vocab = tokenizer.vocab_size()};
  const size_t threads = static_cast<size_t>(std::max(options.threads, 1)), round = threads * 4;
  for (size_t begin = 0; begin < pieces.size(); begin += round) {
    const size_t end = std::min(pieces.size(), begin + round);
    std::vector<Encoded> encoded(end - begin);
    std::atomic<size_t> next{begin};
    std::vector<std::thread> workers;
    for (size_t t = 0; t < std::min(threads, end - begin); ++t)
      workers.emplace_back([&] {
        for (size_t i = next++; i < end; i = next++) {
          try {
            encoded[i - begin] = encode_piece(pieces[i], options, tokenizer);
          } catch (const std::exception& problem) {
            encoded[i - begin].error = file_error("{}: {}", *pieces[i].path, problem.what());
          }
          progress.add(static_cast<int64_t>(pieces[i].text.size()));
        }
      });
    for (std::thread& worker : workers) worker.join();
    for (const Encoded& piece : encoded) {
      if (piece.error) return *piece.error;
      summary.text_bytes += piece.text_bytes;
      for (const auto& document : piece.documents) writer.add_document(document);
    }
  }
  summary.documents = writer.num_documents();
  summary.tokens = writer.num_tokens();
  if (summary.documents == 0) return file_error("{}: no text in the inputs", options.output);
  if (auto done = writer.finish(); !done) return done.error();
  const nlohmann::ordered_json sidecar = {{"tokenizer", options.tokenizer},
                                          {"fingerprint", tokenizer.fingerprint()},
                                          {"vocab", summary.vocab},
                                          {"documents", summary.documents},
                                          {"tokens", summary.tokens},
                                          {"text_bytes", summary.text_bytes},
                                          {"format", enum_name(options.format)}};
  if (auto done = write_file(options.output + ".json", sidecar.dump(2) + "\n"); !done) return done.error();
  return summary;
}

}  // namespace tri
