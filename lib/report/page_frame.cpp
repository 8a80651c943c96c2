#include "lib/report/page_frame.h"

#include <algorithm>
#include <string_view>

#include "io/base/error.h"
#include "io/tokens/utf8.h"
#include "lib/report/page_files.h"

namespace tri {

namespace {

// Escapes one character of text; drops characters that XML does not allow.
std::string_view markup_of(std::string_view character) {
  switch (character[0]) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    case '\n':
    case '\t':
      return character;
  }
  const bool control = static_cast<unsigned char>(character[0]) < 32;
  return control || character == "\uFFFE" || character == "\uFFFF" ? "?" : character;
}

}  // namespace

std::string markup_text(const std::string& text) {
  std::string made;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t length = utf8_sequence(rest);
    made += length == 0 ? "\uFFFD" : markup_of(rest.substr(0, length));
    rest.remove_prefix(std::max<size_t>(length, 1));
  }
  return made;
}

std::string fill_page_frame(const PageParts& parts) {
  std::string page;
  // Replaces each {{NAME}} in the page's frame in one pass, without scanning the inserted text.
  const std::string_view frame = page_files::kFrame;
  size_t at = 0;
  for (size_t open; (open = frame.find("{{", at)) != frame.npos;) {
    const size_t close = frame.find("}}", open);
    TRI_REQUIRE(close != frame.npos, "the frame of the report's page has an open {{{{");
    const std::string_view name = frame.substr(open + 2, close - open - 2);
    page += frame.substr(at, open - at);
    at = close + 2;
    if (name == "title") page += markup_text(parts.title);
    if (name == "style") page += page_files::kStyle;
    if (name == "summary") page += markup_text(parts.summary);
    if (name == "data") page += parts.data;
    if (name == "script") page += parts.script;
  }
  return page += frame.substr(at);
}

std::string embedded_json(const std::string& json) {
  std::string made;
  made.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&')
      made += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      made += c;
  }
  return made;
}

}  // namespace tri
