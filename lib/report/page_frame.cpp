#include "lib/report/page_frame.h"

#include "io/base/error.h"
#include "lib/report/page_files.h"

namespace tri {

std::string markup_text(const std::string& text) {
  std::string made;
  for (const char c : text) {
    switch (c) {
      case '&':
        made += "&amp;";
        break;
      case '<':
        made += "&lt;";
        break;
      case '>':
        made += "&gt;";
        break;
      case '"':
        made += "&quot;";
        break;
      case '\'':
        made += "&#39;";
        break;
      default:
        made += static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return made;
}

std::string fill_page_frame(const PageParts& parts) {
  std::string page;
  // {{NAME}} in the page's frame, in one pass: what is put in its place is not looked at again.
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
