// Patterns of tokenizer.json are Oniguruma's. Constructs with the same meaning in both dialects are kept; those that
// differ are rewritten; all others are refused:
//   \s \d                White_Space and Nd, in full: PCRE2's \s also takes U+180E
//   { ,m}                {0,m}: PCRE2 10.42 reads it as text
//   [a[bc]]              a union: PCRE2 reads the inner bracket as text
//   \p{L}                including what Unicode assigned since PCRE2's version: unicode_additions.h
//   \p{Han}              the script itself, not its extensions
//   ^ $                  at every line: after a newline that does not end the text; before a newline, or at the end
//   {n,m}+  {n}?  \w \h \b && (?i) [[:x:]] \1     have different meanings: refused
#include <array>

#include "io/tokens/bpe/unicode.h"
#include "io/tokens/bpe/unicode_additions.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// One element of a pattern or of a class.
struct Item {
  std::string text;     // for use inside brackets
  std::string outside;  // for use outside them; empty: the same
  bool single = false;  // one character, which may begin or end a range
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (!at_end()) {
      const char c = peek();
      Result<void> done;
      if (c == '[')
        done = take_class();
      else if (c == '(')
        done = take_group();
      else if (c == ')' || c == '|')
        out_ += take();
      else if (c == '*' || c == '+' || c == '?' || c == '{')
        done = take_quantifier();
      else if (c == '^' || c == '$')
        done = take_anchor();
      else if (c == '.')
        out_ += "[^\\n]", ++at_;
      else
        done = take_item(out_);
      if (!done) return done.error();
    }
    return out_;
  }

 private:
  bool at_end() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  char take() { return pattern_[at_++]; }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  Error refuse(size_t length, std::string_view what) const {
    return file_error("the regular expression {} cannot be parsed at byte {}, \"{}\": {}", pattern_, at_,
                      pattern_.substr(at_, length), what);
  }

  Result<void> take_item(std::string& out) {
    const auto item = read_item();
    if (!item) return item.error();
    out += item.value().outside.empty() ? item.value().text : item.value().outside;
    return {};
  }

  // Only \n separates lines in both dialects, but PCRE2's own anchors depend on its build options.
  Result<void> take_anchor() {
    out_ += take() == '^' ? "(?:\\A|(?<=\\x{a})(?!\\z))" : "(?=\\x{a}|\\z)";
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      return refuse(1, "an anchor cannot have a quantifier");
    return {};
  }

  // Reads a character or an escape such as \s.
  Result<Item> read_item() {
    if (at_end()) return refuse(1, "the pattern ends too early");
    if (peek() == '\\') return read_escape();
    const size_t length = utf8_sequence(pattern_.substr(at_, 4));
    if (length == 0) return refuse(1, "not UTF-8");
    const std::string_view character = pattern_.substr(at_, length);
    at_ += length;
    return literal(utf8_code_point(character, length));
  }

  static Item literal(uint32_t point) {
    const bool plain = point < 128 && (is_letter(static_cast<char>(point)) || is_digit(static_cast<char>(point)));
    return {.text = plain ? std::string(1, static_cast<char>(point)) : fmt::format("\\x{{{:x}}}", point),
            .single = true};
  }

  Result<Item> read_escape() {
    const char c = peek(1);
    constexpr std::array<std::pair<char, uint32_t>, 5> kControls = {
        {{'t', 9}, {'n', 10}, {'v', 11}, {'f', 12}, {'r', 13}}};
    for (const auto& [name, point] : kControls)
      if (c == name) return at_ += 2, literal(point);
    if (c == 's') return at_ += 2, Item{std::string(kSpaces), fmt::format("[{}]", kSpaces)};
    if (c == 'S') return at_ += 2, Item{"\\P{White_Space}", fmt::format("[^{}]", kSpaces)};
    if (c == 'd') return at_ += 2, Item{"\\p{Nd}", ""};
    if (c == 'D') return at_ += 2, Item{"\\P{Nd}", ""};
    if (c == 'p' || c == 'P') return read_property();
    if (c == 'u' || c == 'x') return read_code_point();
    if (c == '\0' || is_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 128)
      return refuse(2, "this escape is not supported");
    at_ += 2;
    return literal(static_cast<uint32_t>(c));
  }

  // Reads \p{L}, \p{Lu}, \P{N} (general categories) or \p{Han} (a script).
  Result<Item> read_property() {
    size_t end = at_ + 3;
    while (end < pattern_.size() && (is_letter(pattern_[end]) || pattern_[end] == '_')) ++end;
    if (peek(2) != '{' || end >= pattern_.size() || pattern_[end] != '}')
      return refuse(end - at_ + 1, "this property is not supported");
    const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const bool category = name.size() <= 2;
    if (category && (name.empty() || std::string_view("LMNPSZC").find(name[0]) == std::string_view::npos))
      return refuse(end - at_ + 1, "this property is not supported");
    Item item{fmt::format("\\{}{{{}{}}}", peek(1), category ? "" : "sc:", name), ""};
    if (category) {
      std::string added;
      for (const AssignedRange& range : kAssignedSinceUnicode14)
        if (range.category.starts_with(name)) added += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
      if (peek(1) == 'p' && !added.empty()) {
        item.outside = fmt::format("[{}{}]", item.text, added);
        item.text += added;
      } else if (!added.empty()) {
        item.outside =
            fmt::format("[^\\p{{{}}}{}]", name, added);  // inside brackets there is no such form; the old one stays
      }
    }
    at_ = end + 1;
    return item;
  }

  // Reads \xHH below 80, \x{H...} or \uHHHH.
  Result<Item> read_code_point() {
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    const size_t begin = at_ + (braces ? 3 : 2), most = braces ? 8 : peek(1) == 'x' ? 2 : 4;
    size_t end = begin;
    while (end < pattern_.size() && end - begin < most && is_hex(pattern_[end])) ++end;
    const size_t length = end - at_ + (braces ? 1 : 0);
    if (end == begin || (braces && (end >= pattern_.size() || pattern_[end] != '}')) || (!braces && end - begin < most))
      return refuse(length, "not a code point");
    const auto point = static_cast<uint32_t>(std::stoul(std::string(pattern_.substr(begin, end - begin)), nullptr, 16));
    if (most == 2 && point > 0x7F) return refuse(length, "a byte that is not a character");
    at_ += length;
    return literal(point);
  }

  Result<void> take_group() {
    for (const std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"})
      if (take(open)) return out_ += open, Result<void>();
    if (peek(1) == '?' || peek(1) == '*') return refuse(4, "this kind of group is not supported");
    ++at_;
    out_ += "(?:";
    return {};
  }

  Result<void> take_quantifier() {
    if (peek() != '{') {
      out_ += take();
      if (peek() == '?' || peek() == '+') out_ += take();
    } else {
      size_t end = at_ + 1;
      while (end < pattern_.size() && (is_digit(pattern_[end]) || pattern_[end] == ',')) ++end;
      const std::string_view bounds = pattern_.substr(at_ + 1, end - at_ - 1);
      const size_t comma = bounds.find(',');
      if (end >= pattern_.size() || pattern_[end] != '}' || bounds.empty() || bounds == "," ||
          (comma != std::string_view::npos && bounds.find(',', comma + 1) != std::string_view::npos))
        return refuse(end - at_ + 1, "not an interval");
      out_ += fmt::format("{{{}{}}}", comma == 0 ? "0" : "", bounds);
      at_ = end + 1;
      if (peek() == '?' && comma != std::string_view::npos) out_ += take();
    }
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      return refuse(1, "a quantifier cannot follow another one");
    return {};
  }

  Result<void> take_class() {
    out_ += take();
    if (peek() == '^') out_ += take();
    if (peek() == ']') return refuse(1, "an empty class");
    for (int depth = 1; depth > 0;) {
      if (at_end()) return refuse(1, "the class does not end");
      if (take("]")) {
        --depth;
      } else if (peek() == '[') {
        if (peek(1) == '^' || peek(1) == ':' || peek(1) == ']')
          return refuse(2, "this class inside a class is not supported");
        ++at_;
        ++depth;
      } else if (peek() == '&' && peek(1) == '&') {
        return refuse(2, "an intersection of classes is not supported");
      } else if (auto done = take_range(); !done) {
        return done;
      }
    }
    out_ += ']';
    return {};
  }

  // Reads an element of a class, or two with a hyphen between them.
  Result<void> take_range() {
    const auto first = read_item();
    if (!first) return first.error();
    out_ += first.value().text;
    if (peek() != '-' || peek(1) == ']' || at_ + 1 >= pattern_.size()) return {};
    if (!first.value().single || peek(1) == '[')
      return refuse(2, "a hyphen must be part of a range or the last character of the class");
    ++at_;
    const auto last = read_item();
    if (!last) return last.error();
    if (!last.value().single) return refuse(1, "a range must end in a single character");
    out_ += "-" + last.value().text;
    return {};
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace tri
