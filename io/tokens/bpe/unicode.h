// What a tokenizer.json asks of Unicode: regular expressions that split text into words, and normal forms. By PCRE2 and
// utf8proc (pcre2.cpp); a build without them (no_pcre2.cpp) answers every request with an error that says so.
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

// Whether this build can: Error naming the packages that it lacks.
Result<void> unicode_support();

// `text` is well-formed UTF-8.
std::string normalize(std::string_view text, NormalForm form);

// The dialect of tokenizer.json (Oniguruma's Ruby syntax over UTF-8) in PCRE2's words. Error naming the first construct
// that is not known to mean the same in both: better no tokens than others.
Result<std::string> to_pcre2(std::string_view pattern);

struct Match {
  size_t begin = 0, end = 0;  // bytes
};

// A compiled pattern. Thread-safe; what a match needs in addition to it is a Matcher, one a thread.
class SplitPattern {
 public:
  // `pattern` in the dialect of tokenizer.json. Error naming what of it is not understood, or that it matches nothing
  // at all somewhere (an empty match).
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

  // The first match at or behind byte `from`, which begins a character of the well-formed `text`; false when there is
  // none. What stands before `from` is seen by lookbehinds. Fatal when the pattern needs more steps than PCRE2 allows.
  bool next(const SplitPattern& pattern, std::string_view text, size_t from, Match& match);

  struct Memory;

 private:
  std::unique_ptr<Memory> memory_;
};

}  // namespace tri
