#include "lib/infer/text_lines.h"

#include <sstream>

#include "io/base/json.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

using Json = nlohmann::json;

// Calls line(object), which returns a Result, for every line that is not empty, and returns their values.
template <class T, class Line>
Result<std::vector<T>> read_lines(const std::string& json_lines, const std::string& path, Line line) {
  std::vector<T> values;
  std::istringstream stream(json_lines);
  std::string text;
  for (int number = 1; std::getline(stream, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (utf8_prefix(text) < text.size())
      return usage_error("{}:{}: not UTF-8 text; save the file as UTF-8, such as with iconv -f latin1 -t utf-8", path,
                         number);
    const Json object = try_parse_json<Json>(text);
    if (!object.is_object())
      return usage_error("{}:{}: not a JSON object; write one object per line, such as {{\"text\": \"...\"}}", path,
                         number);
    Result<T> value = line(object);
    if (!value) return usage_error("{}:{}: {}", path, number, value.error().message);
    values.push_back(std::move(value).value());
  }
  if (values.empty()) return usage_error("{}: has no lines", path);
  return values;
}

// Returns the text of a field; none: it is absent.
Result<std::optional<std::string>> text_of(const Json& object, const char* name) {
  if (!object.contains(name)) return std::optional<std::string>();
  if (!object[name].is_string()) return usage_error("\"{}\" is not a string", name);
  return std::optional(object[name].get<std::string>());
}

Result<std::vector<int32_t>> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  if (list.is_array())
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) break;
      ids.push_back(id.get<int32_t>());
    }
  if (ids.empty() || ids.size() != list.size()) return usage_error("\"prompt_ids\" is not a list of token ids");
  return ids;
}

}  // namespace

Result<std::vector<PromptLine>> read_prompt_lines(const std::string& json_lines, const std::string& path) {
  return read_lines<PromptLine>(json_lines, path, [](const Json& object) -> Result<PromptLine> {
    PromptLine line;
    const auto text = text_of(object, "prompt");
    if (!text) return text.error();
    if (text.value().has_value() == object.contains("prompt_ids"))
      return usage_error("expected either \"prompt\" or \"prompt_ids\"");
    line.text = text.value().value_or("");
    if (object.contains("prompt_ids")) {
      auto ids = ids_of(object["prompt_ids"]);
      if (!ids) return ids.error();
      line.ids = std::move(ids).value();
    }
    if (object.contains("seed")) {
      if (!object["seed"].is_number_unsigned()) return usage_error("\"seed\" is not a whole number from 0");
      line.seed = object["seed"].get<uint64_t>();
    }
    return line;
  });
}

Result<std::vector<TextLine>> read_text_lines(const std::string& json_lines, const std::string& path) {
  return read_lines<TextLine>(json_lines, path, [](const Json& object) -> Result<TextLine> {
    const auto text = text_of(object, "text"), context = text_of(object, "context"),
               continuation = text_of(object, "continuation");
    for (const auto* field : {&text, &context, &continuation})
      if (!*field) return field->error();
    const bool pair = context.value().has_value() && continuation.value().has_value();
    if (text.value().has_value() ? context.value() || continuation.value() : !pair)
      return usage_error("expected either \"text\", or \"context\" and \"continuation\"");
    if (!pair) return TextLine{.context = "", .text = *text.value()};
    return TextLine{.context = *context.value(), .text = *continuation.value()};
  });
}

Result<ScoredText> tokens_to_score(const TextLine& line, const Tokenizer& tokenizer) {
  const size_t end = line.context.find_last_not_of(" \t\r\n");
  const std::string context = line.context.substr(0, end == std::string::npos ? 0 : end + 1);
  std::vector<int32_t> begin = tokenizer.encode("");
  ScoredText scored{.tokens = tokenizer.encode(line.context + line.text), .first = tokenizer.encode(context).size()};
  if (context.empty()) {
    scored.first = begin.size();
    if (begin.empty()) {
      scored.tokens.insert(scored.tokens.begin(), tokenizer.eod());
      scored.first = 1;
    }
  }
  if (line.text.empty() || scored.first >= scored.tokens.size()) return usage_error("there is no text to score");
  return scored;
}

}  // namespace tri
