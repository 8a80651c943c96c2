#include "io/tokens/prepare_blocks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <utility>

#include "io/base/format.h"
#include "io/base/json.h"
#include "io/base/readable_text.h"
#include "io/tokens/json_line.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

using Json = nlohmann::json;

// Returns a name from a file for a message: on one line, of limited length, without terminal control characters.
std::string shown_name(std::string_view name) {
  constexpr size_t kLongest = 40;
  size_t end = std::min(name.size(), kLongest);
  while (end < name.size() && end > 0 && (name[end] & 0xC0) == 0x80) --end;  // not inside a character
  std::string shown = readable_text(name.substr(0, end)) + (end < name.size() ? "..." : "");
  std::ranges::replace_if(
      shown, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return shown;
}

// Returns ": id, content.text, meta.url": some of the fields with text, including those one object deeper; empty: none.
std::string fields_of(const Json& object) {
  constexpr size_t kMost = 8;
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) {
    if (value.is_string()) names.push_back(shown_name(name));
    if (value.is_object())
      for (const auto& [inner, text] : value.items())
        if (text.is_string()) names.push_back(shown_name(name + "." + inner));
  }
  if (names.empty()) return "";
  std::vector<std::string> once;  // a key "a.b" and a key "b" of an object "a" have one name, which means the first
  for (std::string& name : names)
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(std::move(name));
  names = std::move(once);
  const bool more = names.size() > kMost;
  names.resize(std::min(names.size(), kMost));
  return fmt::format(": {}{}", fmt::join(names, ", "), more ? " ..." : "");
}

// Returns "an array", "a number", "null".
std::string kind_of(const Json& value) {
  if (value.is_null()) return "null";
  const std::string name = value.type_name();
  return (name == "array" || name == "object" ? "an " : "a ") + name;
}

Result<std::string> document_of_line(std::string_view line, TextFormat format, const PrepareOptions& options) {
  if (format == TextFormat::kLines) return std::string(line);
  const auto parsed = parse_json_line(line);
  if (!parsed) return parsed.error();
  const Json& object = parsed.value();
  if (object.is_array()) return file_error("a JSON array, expected an object; {}", kJsonLines);
  if (!object.is_object()) return file_error("a JSON {}, expected an object", object.type_name());
  const Json* field = find_json_field(object, options.text_field);
  if (field == nullptr)
    return file_error("no field \"{}\"; name the text's field with --field{}", options.text_field, fields_of(object));
  if (!field->is_string())
    return file_error("field \"{}\" is {}, expected a string", options.text_field, kind_of(*field));
  return field->get<std::string>();
}

// Returns why `text`, a whole document or file, is not text; empty if it is.
std::string why_no_text(std::string_view text, const TextFaults& faults) {
  if (const std::string_view encoding = foreign_encoding(text); !encoding.empty())
    return fmt::format("not UTF-8 text: its byte order mark is that of {}; convert it (iconv -t UTF-8)", encoding);
  TextCheck check("");
  const auto added = check.add(faults), done = added ? check.finish() : added;
  return done ? "" : done.error().message.substr(2);  // without ": ", which follows an empty path
}

void add_to(TextFaults& sum, const TextFaults& next) {
  if (sum.first < 0 && next.first >= 0) sum.first = sum.bytes + next.first;
  sum.bytes += next.bytes;
  sum.faults += next.faults;
}

class BlockEncoder {
 public:
  BlockEncoder(const TextBlock& block, const TextInput& input, const PrepareOptions& options,
               const Tokenizer& tokenizer)
      : block_(block), input_(input), options_(options), tokenizer_(tokenizer) {}

  EncodedBlock run() {
    if (input_.format == TextFormat::kText)
      encode_file();
    else if (const auto encoding = foreign_encoding(block_.text); block_.begin.bytes == 0 && !encoding.empty())
      result_.error = file_error("{}: {}", input_.path, why_no_text(block_.text, {}));
    else
      encode_lines();
    return std::move(result_);
  }

 private:
  // In JSON, blanks around a value mean nothing.
  bool is_blank(std::string_view line) const {
    return line.empty() ||
           (input_.format == TextFormat::kJsonl && line.find_first_not_of(" \t\r") == std::string_view::npos);
  }
  bool skips() const { return options_.skip_bad.any(); }

  void add(std::string_view text) {
    EncodedDocument document{.output = split_of(text, options_.splits),
                             .text_bytes = static_cast<int64_t>(text.size()),
                             .tokens = tokenizer_.encode(text),
                             .trained = {}};
    document.tokens.push_back(tokenizer_.eod());
    result_.documents.push_back(std::move(document));
  }
  // Adds the conversation of a line. Returns why it cannot be read; "" if it was added.
  std::string add_chat(std::string_view line) {
    const auto object = parse_json_line(line);
    if (!object) return object.error().message;
    const auto chat = render_chat(object.value(), *options_.chat);
    if (!chat) return chat.error().message;
    std::string text;
    for (const ChatPart& part : chat.value().parts) text += part.text;
    ChatTokens encoded = encode_chat(chat.value(), tokenizer_);
    result_.documents.push_back({.output = split_of(text, options_.splits),
                                 .text_bytes = static_cast<int64_t>(text.size()),
                                 .tokens = std::move(encoded.tokens),
                                 .trained = std::move(encoded.trained)});
    return "";
  }
  void add_bad(int64_t at, int64_t line, std::string why) {
    result_.bad.push_back({result_.documents.size(), at, line, result_.faults, std::move(why)});
  }

  void encode_file() {
    const TextFaults faults = faults_of(block_.text);
    if (std::string why = why_no_text(block_.text, faults); !why.empty()) return add_bad(0, 0, std::move(why));
    result_.faults = faults;
    add(block_.text);
  }

  void encode_lines() {
    const std::string_view text = block_.text;
    size_t counted = 0;  // bytes of the text counted in result_.faults
    int64_t number = block_.begin.line;
    for (size_t at = 0; at < text.size(); ++number) {
      const size_t newline = text.find('\n', at), begin = at;
      std::string_view line = text.substr(at, newline == std::string_view::npos ? newline : newline - at);
      at = newline == std::string_view::npos ? text.size() : newline + 1;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());  // of joined files
      if (is_blank(line)) continue;
      std::string why;
      if (options_.chat) {
        why = add_chat(line);
      } else {
        const auto document = document_of_line(line, input_.format, options_);
        if (!document) why = document.error().message;
        if (skips() && document && input_.format == TextFormat::kLines) why = why_no_text(line, faults_of(line));
        if (why.empty() && !document.value().empty()) add(document.value());
      }
      if (why.empty()) continue;
      add_to(result_.faults, faults_of(text.substr(counted, begin - counted)));
      add_bad(static_cast<int64_t>(begin), number, std::move(why));
      if (!skips()) return check_whole();
      add_to(result_.faults, {.bytes = static_cast<int64_t>(at - begin)});
      counted = at;
    }
    add_to(result_.faults, faults_of(text.substr(counted)));
  }

  // If the file is not text at all, reports that instead of the error in its first line.
  void check_whole() {
    TextCheck check(input_.path);
    if (auto text = check.add(faults_of(block_.text)); !text) result_.error = text.error();
  }

  const TextBlock& block_;
  const TextInput& input_;
  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  EncodedBlock result_;
};

}  // namespace

Result<void> TextBlocks::open() {
  auto opened = TextReader::open(inputs_[at_.input].path);
  if (!opened) return opened.error();
  reader_.emplace(std::move(opened).value());
  hash_.emplace();
  std::string block;
  while (skip_ > 0) {  // the skipped text ends with a line, like blocks
    if (auto got = reader_->next_lines(std::min(skip_, kBlockBytes), block); !got) return got;
    if (block.empty())
      return file_error("{}: is shorter than when the interrupted run read it", inputs_[at_.input].path);
    hash_->update(block.data(), block.size());
    skip_ -= static_cast<int64_t>(block.size());
  }
  if (skip_ < 0)
    return file_error(
        "{}: the saved point to continue from is within a line; remove the .json.part file of the "
        "interrupted run, and start over",
        inputs_[at_.input].path);
  progress_.add(reader_->consumed());
  return {};
}

Result<bool> TextBlocks::next(TextBlock& block) {
  while (at_.input < inputs_.size()) {
    if (!reader_)
      if (auto opened = open(); !opened) return opened.error();
    const int64_t before = reader_->consumed();
    const bool whole = inputs_[at_.input].format == TextFormat::kText;
    if (auto got = whole ? reader_->rest(block.text) : reader_->next_lines(kBlockBytes, block.text); !got)
      return got.error();
    progress_.add(reader_->consumed() - before);
    if (!block.text.empty()) {
      block.begin = at_;
      block.hash = std::exchange(hash_, std::nullopt);
      at_.bytes += static_cast<int64_t>(block.text.size());
      at_.line += std::count(block.text.begin(), block.text.end(), '\n');
      block.end = at_;
      return true;
    }
    reader_.reset();
    at_ = {.input = at_.input + 1};
  }
  return false;
}

std::vector<EncodedBlock> encode_blocks(const std::vector<TextBlock>& blocks, const std::vector<TextInput>& inputs,
                                        const PrepareOptions& options, const Tokenizer& tokenizer) {
  std::vector<EncodedBlock> encoded(blocks.size());
  std::atomic<size_t> next{0};
  std::vector<std::jthread> workers;
  for (size_t t = 0; t < std::min(static_cast<size_t>(std::max(options.threads, 1)), blocks.size()); ++t)
    workers.emplace_back([&] {
      for (size_t i = next++; i < blocks.size(); i = next++) {
        const TextInput& input = inputs[blocks[i].begin.input];
        try {
          encoded[i] = BlockEncoder(blocks[i], input, options, tokenizer).run();
        } catch (const std::bad_alloc&) {
          encoded[i] = {};
          encoded[i].error = file_error(
              "{}:{}: not enough memory for the tokens of {} of text; split its documents, "
              "or use fewer --threads",
              input.path, blocks[i].begin.line, format_bytes(static_cast<int64_t>(blocks[i].text.size())));
        } catch (const std::exception& problem) {
          encoded[i].error = file_error("{}: {}", input.path, problem.what());
        }
      }
    });
  workers.clear();  // joins them
  return encoded;
}

}  // namespace tri
