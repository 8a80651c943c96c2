// The Unicode functions that a tokenizer.json needs: regular expressions that split text into words, and normal forms.
// They use PCRE2 and utf8proc (pcre2.cpp). In a build without them (no_pcre2.cpp) all fail, naming the packages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/base/enum_names.h"
#include "io/base/error.h"

namespace tri {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

template <>
struct EnumNames<NormalForm> {
  static constexpr std::array table{
      std::pair{NormalForm::kNfc, std::string_view("NFC")}, std::pair{NormalForm::kNfd, std::string_view("NFD")},
      std::pair{NormalForm::kNfkc, std::string_view("NFKC")}, std::pair{NormalForm::kNfkd, std::string_view("NFKD")}};
};

// Fails, naming the missing packages, if this build lacks these functions.
Result<void> unicode_support();

// `text` must be well-formed UTF-8.
std::string normalize(std::string_view text, NormalForm form);

// Translates the dialect of tokenizer.json (Oniguruma's Ruby syntax over UTF-8) to PCRE2. Fails, naming the first
// construct that may mean something else in PCRE2: no tokens are better than different ones.
Result<std::string> to_pcre2(std::string_view pattern);

struct Match {
  size_t begin = 0, end = 0;  // bytes
};

// A compiled pattern. Safe for concurrent use; each thread needs a Matcher.
class SplitPattern {
 public:
  // Compiles `pattern` in the dialect of tokenizer.json. Fails, naming the unsupported part, or if an empty text can
  // match.
  static Result<SplitPattern> compile(std::string_view pattern);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  struct Code;

 private:
  friend class Matcher;
  explicit SplitPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// One thread's memory for matching any pattern.
class Matcher {
 public:
  Matcher();
  Matcher(Matcher&&) noexcept;
  ~Matcher();

  // Finds the first match at or after byte `from`, which begins a character of the well-formed `text`; returns false if
  // there is none. Lookbehinds see the text before `from`. Throws Fatal if the pattern needs more steps than PCRE2
  // allows.
  bool next(const SplitPattern& pattern, std::string_view text, size_t from, Match& match);

  struct Memory;

 private:
  std::unique_ptr<Memory> memory_;
};

}  // namespace tri
