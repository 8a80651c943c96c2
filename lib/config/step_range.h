// A range of steps as text: "20:22".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tri {

struct StepRange {
  int64_t first = 1, last = 1;  // inclusive
  int64_t size() const { return last - first + 1; }
  bool contains(int64_t step) const { return first <= step && step <= last; }
  bool operator==(const StepRange&) const = default;
};

// Parses "FIRST:LAST", or "FIRST" for one step, with 1 <= FIRST <= LAST; returns none for anything else.
std::optional<StepRange> parse_step_range(std::string_view text);

}  // namespace tri
