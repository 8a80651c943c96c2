// The frame of a page that loads nothing (page/page.html), filled: style, program and data are in it.
#pragma once

#include <string>
#include <string_view>

namespace tri {

struct PageParts {
  std::string title, summary;  // as text; the summary is what readers without JavaScript see
  std::string data;            // embedded_json()
  std::string_view script;
};

// Well-formed as XML except for the bodies of <script> and <style>.
std::string fill_page_frame(const PageParts& parts);

// Text as it stands, in any place of a document of HTML or XML but in scripts and styles. Characters that XML has not
// become "?", bytes that are no UTF-8 U+FFFD.
std::string markup_text(const std::string& text);

// JSON without "<", ">" and "&", which it has within text only and may write otherwise there: so no text ends the
// element of the page that holds it, or begins another.
std::string embedded_json(const std::string& json);

}  // namespace tri
