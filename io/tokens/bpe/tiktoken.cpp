// .tiktoken files: one line per token, with its bytes in base64 and its rank, which is also its id. Two neighbours
// merge if their joined bytes are a token, lowest rank first; a word that is a token is not split. The file states
// neither how text is split into words nor which tokens are special: its name does, as in the package `tiktoken`.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/random.h"
#include "io/tokens/bpe/bpe_tokenizer.h"
#include "io/tokens/bpe/byte_letters.h"
#include "io/tokens/bpe/json_parts.h"

namespace tri {
namespace {

// An encoding by its name. Special tokens have fixed ids or, with `behind`, follow the last rank.
struct Encoding {
  std::string name;
  std::string_view pattern;
  std::vector<std::pair<std::string, int32_t>> special;
  bool behind = false;
  std::string eod = "<|endoftext|>", begin = "";  // tokens that end and begin every document
};

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// As in version 0.14 of the package: space up to the end of the text (\s++$ there) is one word, including line ends.
constexpr std::string_view kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s+(?!\s|\S)|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 = "llama3";
constexpr size_t kLlama3Ranks = 128000;
constexpr size_t kLongestToken = 1024;  // in bytes; the longest published token has 128

std::vector<Encoding> encodings() {
  std::vector<Encoding> list{{"r50k_base", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
                             {"p50k_base", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
                             {"cl100k_base",
                              kCl100k,
                              {{"<|endoftext|>", 100257},
                               {"<|fim_prefix|>", 100258},
                               {"<|fim_middle|>", 100259},
                               {"<|fim_suffix|>", 100260},
                               {"<|endofprompt|>", 100276}}},
                             {"o200k_base", kO200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
                             {"qwen", kQwen, {{"<|endoftext|>", 0}, {"<|im_start|>", 1}, {"<|im_end|>", 2}}, true},
                             {kLlama3,
                              kLlama3Pattern,
                              {{"<|begin_of_text|>", 0},
                               {"<|end_of_text|>", 1},
                               {"<|start_header_id|>", 6},
                               {"<|end_header_id|>", 7},
                               {"<|eot_id|>", 9}},
                              true,
                              "<|end_of_text|>",
                              "<|begin_of_text|>"}};
  Encoding &qwen = list[4], &llama3 = list[5];
  for (int i = 0; i < 205; ++i) qwen.special.emplace_back(fmt::format("<|extra_{}|>", i), 3 + i);
  int reserved = 0;
  for (const int32_t id : {2, 3, 4, 5, 8})
    llama3.special.emplace_back(fmt::format("<|reserved_special_token_{}|>", reserved++), id);
  for (int32_t id = 10; id < 256; ++id)
    llama3.special.emplace_back(fmt::format("<|reserved_special_token_{}|>", reserved++), id);
  return list;
}

// Selects the encoding by the file's name. Meta's files of LLaMA 3 are all called tokenizer.model, like those of other
// models that split text differently: the number of ranks distinguishes them.
Result<Encoding> encoding_of(const std::string& path, size_t ranks) {
  const std::string name = std::filesystem::path(path).filename().string();
  std::string names;
  for (Encoding& encoding : encodings()) {
    if (name.starts_with(encoding.name)) return encoding;
    if (encoding.name == kLlama3 && name.ends_with(".model") && ranks == kLlama3Ranks) return encoding;
    names += (names.empty() ? "" : ", ") + encoding.name;
  }
  return file_error(
      "{}: the file name does not say which rule splits text into words; known names are {}, and LLaMA 3's "
      "tokenizer.model with {} ranks (this file has {}): rename the file to the name that its model uses",
      path, names, kLlama3Ranks, ranks);
}

// Returns none if the text is not base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((held += 6) < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<char>(bits >> held & 0xFF));
  }
  if (bytes.empty()) return {};
  return bytes;
}

struct Line {
  std::string bytes;
  int32_t rank = 0;
};
std::optional<Line> line_of(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return {};
  auto bytes = from_base64(line.substr(0, space));
  int32_t rank = -1;
  const auto [end, problem] = std::from_chars(line.data() + space + 1, line.data() + line.size(), rank);
  if (!bytes || problem != std::errc() || end != line.data() + line.size() || rank < 0) return {};
  return Line{std::move(*bytes), rank};
}

using Ids = std::unordered_map<std::string, int32_t>;

// Fails, naming the first invalid line.
Result<Ids> read_ranks(const std::string& path, std::string_view text, BpeDescription& d) {
  const auto most = 2 * std::count(text.begin(), text.end(), '\n') + 1024;
  Ids ids;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    auto line = line_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line) return file_error("{}: line {} is not a base64 token and a rank", path, number);
    if (line->bytes.size() > kLongestToken)
      return file_error("{}: line {}: a token of {} bytes; at most {} are supported", path, number, line->bytes.size(),
                        kLongestToken);
    if (line->rank >= most)
      return file_error("{}: line {}: rank {} is too large for a file with so few tokens", path, number, line->rank);
    const auto id = static_cast<size_t>(line->rank);
    if (id >= d.token_bytes.size()) d.token_bytes.resize(id + 1);
    if (!d.token_bytes[id].empty() || !ids.emplace(line->bytes, line->rank).second)
      return file_error("{}: line {}: rank {}, or its token, occurs twice", path, number, line->rank);
    d.token_bytes[id] = std::move(line->bytes);
  }
  return ids;
}

Result<void> add_special(const Encoding& encoding, BpeDescription& d) {
  const auto first = encoding.behind ? static_cast<int32_t>(d.token_bytes.size()) : 0;
  for (const auto& [content, number] : encoding.special) {
    const int32_t id = first + number;
    if (static_cast<size_t>(id) >= d.token_bytes.size()) d.token_bytes.resize(static_cast<size_t>(id) + 1);
    if (!d.token_bytes[static_cast<size_t>(id)].empty())
      return file_error("{}: rank {} must be free for {} of {}: the file belongs to another model", d.path, id, content,
                        encoding.name);
    d.token_bytes[static_cast<size_t>(id)] = content;
    d.added.push_back({.id = id, .content = content, .special = true});
    if (content == encoding.eod) d.eod = id;
    if (content == encoding.begin) d.begin = {id};
  }
  return {};
}

// Returns every way in which two tokens make a third.
std::vector<Merge> merges_of(const Ids& ids) {
  std::vector<Merge> merges;
  for (const auto& [bytes, id] : ids)
    for (size_t at = 1; at < bytes.size(); ++at) {
      const auto left = ids.find(bytes.substr(0, at)), right = ids.find(bytes.substr(at));
      if (left != ids.end() && right != ids.end())
        merges.push_back({.left = left->second, .right = right->second, .rank = id, .made = id});
    }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tie(a.rank, a.left, a.right) < std::tie(b.rank, b.left, b.right);
  });
  return merges;
}

struct ReadRanks {
  Encoding encoding;
  BpeDescription description;
};
Result<ReadRanks> read_ranks(const std::string& path) {
  if (auto able = unicode_support(); !able) return Error{path + ": " + able.error().message, able.error().code};
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  ReadRanks read{.encoding = {}, .description = {.path = path, .whole = WholeWords::kTaken}};
  BpeDescription& d = read.description;
  const auto ids = read_ranks(path, file.value().text(), d);
  if (!ids) return ids.error();
  auto encoding = encoding_of(path, ids.value().size());
  if (!encoding) return encoding.error();
  read.encoding = std::move(encoding).value();
  d.merges = merges_of(ids.value());
  if (auto added = add_special(read.encoding, d); !added) return added.error();
  auto pattern = SplitPattern::compile(read.encoding.pattern);
  if (!pattern) return pattern.error();
  d.steps.push_back({.pattern = std::move(pattern).value()});
  d.fingerprint = fmt::format("tiktoken:{}:{:016x}", read.encoding.name, derive_key(0, file.value().text()));
  return read;
}

}  // namespace

bool is_tiktoken_file(const std::string& path) {
  if (path.ends_with(".tiktoken")) return true;
  const auto file = MappedFile::open(path);
  if (!file) return false;
  const std::string_view text = file.value().text().substr(0, 4096);
  return text.find('\n') != std::string_view::npos && line_of(text.substr(0, text.find('\n')));
}

Result<std::unique_ptr<Tokenizer>> open_tiktoken(const std::string& path) {
  auto read = read_ranks(path);
  if (!read) return read.error();
  return make_bpe_tokenizer(std::move(read).value().description);
}

Result<std::string> tiktoken_as_json(const std::string& path) {
  const auto read = read_ranks(path);
  if (!read) return read.error();
  const BpeDescription& d = read.value().description;
  using Json = nlohmann::ordered_json;
  Json added = Json::array(), merges = Json::array();
  nlohmann::json vocab = nlohmann::json::object();
  for (size_t id = 0; id < d.token_bytes.size(); ++id)
    if (!d.token_bytes[id].empty()) vocab[letters_of(d.token_bytes[id])] = id;
  for (const AddedToken& token : d.added) {  // in the vocabulary, since transformers ignores ids in added_tokens
    vocab.erase(letters_of(token.content));
    vocab[token.content] = token.id;
    added.push_back(special_token_json(token.id, token.content));
  }
  const auto letters = [&](int32_t id) { return letters_of(d.token_bytes[static_cast<size_t>(id)]); };
  for (const Merge& merge : d.merges) merges.push_back({letters(merge.left), letters(merge.right)});
  const Json bytes = byte_level_json();
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added}};
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", Json::array({{{"type", "Split"},
                                                           {"pattern", {{"Regex", read.value().encoding.pattern}}},
                                                           {"behavior", "Isolated"},
                                                           {"invert", false}},
                                                          bytes})}};
  json["post_processor"] = begin_template(d);
  json["decoder"] = bytes;
  json["model"] = bpe_model_json(vocab, merges, true);
  return json.dump(1) + "\n";
}

}  // namespace tri
