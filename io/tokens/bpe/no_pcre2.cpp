// Used in builds without PCRE2 or utf8proc.
#include "io/tokens/bpe/unicode.h"

namespace tri {

Result<void> unicode_support() {
  return usage_error(
      "this build cannot read tokenizer.json and .tiktoken files because it was built without PCRE2 and utf8proc; "
      "install libpcre2-dev and libutf8proc-dev (make deps), and rebuild");
}

std::string normalize(std::string_view, NormalForm) {
  value_or_throw(unicode_support());
  return {};
}

struct SplitPattern::Code {};
SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;
Result<SplitPattern> SplitPattern::compile(std::string_view) { return unicode_support().error(); }

struct Matcher::Memory {};
Matcher::Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;
bool Matcher::next(const SplitPattern&, std::string_view, size_t, Match&) { return false; }

}  // namespace tri
