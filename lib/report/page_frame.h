// Fills the frame of a self-contained page (page/page.html): style, program and data are embedded.
#pragma once

#include <string>
#include <string_view>

namespace tri {

struct PageParts {
  std::string title, summary;  // as text; readers without JavaScript see the summary
  std::string data;            // embedded_json()
  std::string_view script;
};

// Returns a page that is well-formed XML except for the bodies of <script> and <style>.
std::string fill_page_frame(const PageParts& parts);

// Escapes text for any place in an HTML or XML document except for scripts and styles. Characters that XML does not
// allow become "?", invalid UTF-8 becomes U+FFFD.
std::string markup_text(const std::string& text);

// Returns JSON without "<", ">" and "&", which JSON needs only inside text and can escape there. So no text can end the
// page's element that contains it, or begin another.
std::string embedded_json(const std::string& json);

}  // namespace tri
