#include "lib/config/step_range.h"

#include <charconv>

namespace tri {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<StepRange> parse_step_range(std::string_view text) {
  const size_t colon = text.find(':');
  const auto first = whole_number(text.substr(0, colon));
  const auto last = colon == text.npos ? first : whole_number(text.substr(colon + 1));
  if (!first || !last || *first < 1 || *last < *first) return std::nullopt;
  return StepRange{*first, *last};
}

}  // namespace tri
