#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <array>
#include <cstdlib>

#include "io/tokens/bpe/unicode.h"

namespace tri {
namespace {

struct CodeDeleter {
  void operator()(pcre2_code* code) const { ::pcre2_code_free(code); }
};
std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  ::pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Result<void> unicode_support() { return {}; }

std::string normalize(std::string_view text, NormalForm form) {
  // NFC does not change text in which nothing combines, which is all text below U+0300: lead bytes up to 0xCB.
  if (form == NormalForm::kNfc) {
    bool plain = true;
    for (const char c : text) plain = plain && static_cast<unsigned char>(c) < 0xCC;
    if (plain) return std::string(text);
  }
  unsigned options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes =
      ::utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &made, static_cast<utf8proc_option_t>(options));
  TRI_REQUIRE(bytes >= 0, "utf8proc: {}", ::utf8proc_errmsg(bytes));
  std::string result(reinterpret_cast<const char*>(made), static_cast<size_t>(bytes));
  std::free(made);
  return result;
}

struct SplitPattern::Code {
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  bool jit = false;  // compiled to machine code; else PCRE2 interprets
};

SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

Result<SplitPattern> SplitPattern::compile(std::string_view pattern) {
  const auto translated = to_pcre2(pattern);
  if (!translated) return translated.error();
  const std::string& text = translated.value();
  int problem = 0;
  size_t offset = 0;
  auto made = std::make_unique<Code>();
  made->code.reset(::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP,
                                   &problem, &offset, nullptr));
  if (!made->code)
    return file_error("the regular expression {} cannot be parsed: {} (as {}, byte {})", pattern, message_of(problem),
                      text, offset);
  uint32_t matches_nothing = 0;
  ::pcre2_pattern_info(made->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0)
    return file_error("the regular expression {} is not supported: it can match empty text", pattern);
  made->jit = ::pcre2_jit_compile(made->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return SplitPattern(std::move(made));
}

struct Matcher::Memory {
  Memory()
      : data(::pcre2_match_data_create(1, nullptr)),
        context(::pcre2_match_context_create(nullptr)),
        stack(::pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr)) {
    TRI_REQUIRE(data != nullptr && context != nullptr, "PCRE2: out of memory");
    ::pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Memory() {
    ::pcre2_match_data_free(data);
    ::pcre2_match_context_free(context);
    ::pcre2_jit_stack_free(stack);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Matcher::Matcher() : memory_(std::make_unique<Memory>()) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

bool Matcher::next(const SplitPattern& pattern, std::string_view text, size_t from, Match& match) {
  const SplitPattern::Code& code = *pattern.code_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = code.jit ? ::pcre2_jit_match(code.code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                                 memory_->data, memory_->context)
                             : ::pcre2_match(code.code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                             memory_->data, memory_->context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) throw Fatal(ExitCode::kFile, fmt::format("PCRE2 at byte {} of a text: {}", from, message_of(found)));
  const size_t* ends = ::pcre2_get_ovector_pointer(memory_->data);
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace tri
