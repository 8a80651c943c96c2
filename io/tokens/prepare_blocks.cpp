#include "io/tokens/prepare_blocks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/base/format.h"
#include "io/base/readable_text.h"

namespace tri {
namespace {

using Json = nlohmann::json;

// The member that `path` names: a key, else keys of objects in objects with dots between them. Null: there is none.
const Json* find_field(const Json& object, std::string_view path) {
  if (!object.is_object()) return nullptr;
  if (const auto whole = object.find(path); whole != object.end()) return &*whole;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (const auto inner = object.find(path.substr(0, dot)); inner != object.end())
      if (const Json* found = find_field(*inner, path.substr(dot + 1))) return found;
  return nullptr;
}

// A name from a file as a message shows it: on one line, not too long, nothing that a terminal obeys.
std::string shown_name(std::string_view name) {
  constexpr size_t kLongest = 40;
  size_t end = std::min(name.size(), kLongest);
  while (end < name.size() && end > 0 && (name[end] & 0xC0) == 0x80) --end;  // not inside a character
  std::string shown = readable_text(name.substr(0, end)) + (end < name.size() ? "..." : "");
  std::ranges::replace_if(
      shown, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return shown;
}

// ": id, content.text, meta.url": fields that hold text, a few of them, also those one object deeper; empty: none does.
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
  const bool more = names.size() > kMost;
  names.resize(std::min(names.size(), kMost));
  return fmt::format(": {}{}", fmt::join(names, ", "), more ? " ..." : "");
}

Result<std::string> document_of_line(std::string_view line, TextFormat format, const PrepareOptions& options) {
  if (format == TextFormat::kLines) return std::string(line);
  const auto object = Json::parse(line, nullptr, false);
  if (object.is_discarded()) return file_error("not valid JSON");
  if (!object.is_object()) return file_error("a JSON {}, expected an object", object.type_name());
  const Json* field = find_field(object, options.text_field);
  if (field == nullptr)
    return file_error("no field \"{}\"; name the text's field with --field{}", options.text_field, fields_of(object));
  if (!field->is_string())
    return file_error("field \"{}\" is a {}, expected a string", options.text_field, field->type_name());
  return field->get<std::string>();
}

EncodedBlock encode_block(const Block& block, const TextInput& input, const PrepareOptions& options,
                          const Tokenizer& tokenizer) {
  EncodedBlock result{.faults = faults_of(block.text)};
  const auto add = [&](std::string_view text) {
    EncodedDocument document{split_of(text, options.splits), static_cast<int64_t>(text.size()), tokenizer.encode(text)};
    document.tokens.push_back(tokenizer.eod());
    result.documents.push_back(std::move(document));
  };
  if (input.format == TextFormat::kText) {
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
    const auto document = document_of_line(line, input.format, options);
    if (!document) {
      result.error = file_error("{}:{}: {}", input.path, number, document.error().message);
      return result;
    }
    if (!document.value().empty()) add(document.value());
  }
  return result;
}

}  // namespace

Result<void> Blocks::open() {
  auto opened = TextReader::open(inputs_[at_.input].path);
  if (!opened) return opened.error();
  reader_.emplace(std::move(opened).value());
  std::string block;
  while (skip_ > 0) {  // it ends with a line, as blocks do
    if (auto got = reader_->next_lines(std::min(skip_, kBlockBytes), block); !got) return got;
    if (block.empty()) return file_error("{}: is shorter than it was", inputs_[at_.input].path);
    skip_ -= static_cast<int64_t>(block.size());
  }
  progress_.add(reader_->consumed());
  return {};
}

Result<bool> Blocks::next(Block& block) {
  while (at_.input < inputs_.size()) {
    if (!reader_)
      if (auto opened = open(); !opened) return opened.error();
    const int64_t before = reader_->consumed();
    block.input = at_.input;
    block.first_line = at_.line;
    const bool whole = inputs_[at_.input].format == TextFormat::kText;
    if (auto got = whole ? reader_->rest(block.text) : reader_->next_lines(kBlockBytes, block.text); !got)
      return got.error();
    progress_.add(reader_->consumed() - before);
    if (!block.text.empty()) {
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

std::vector<EncodedBlock> encode_blocks(const std::vector<Block>& blocks, const std::vector<TextInput>& inputs,
                                        const PrepareOptions& options, const Tokenizer& tokenizer) {
  std::vector<EncodedBlock> encoded(blocks.size());
  std::atomic<size_t> next{0};
  std::vector<std::jthread> workers;
  for (size_t t = 0; t < std::min(static_cast<size_t>(std::max(options.threads, 1)), blocks.size()); ++t)
    workers.emplace_back([&] {
      for (size_t i = next++; i < blocks.size(); i = next++) {
        const TextInput& input = inputs[blocks[i].input];
        try {
          encoded[i] = encode_block(blocks[i], input, options, tokenizer);
        } catch (const std::bad_alloc&) {
          encoded[i] = {.documents = {},
                        .faults = {},
                        .error = file_error("{}:{}: not enough memory for the tokens of {} of text; split its "
                                            "documents, or use fewer --threads",
                                            input.path, blocks[i].first_line,
                                            format_bytes(static_cast<int64_t>(blocks[i].text.size())))};
        } catch (const std::exception& problem) {
          encoded[i].error = file_error("{}: {}", input.path, problem.what());
        }
      }
    });
  workers.clear();  // joins them
  return encoded;
}

}  // namespace tri
