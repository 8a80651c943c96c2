// Numbers of metrics.jsonl that need few digits.
#pragma once

#include <fmt/format.h>

#include <cstdlib>

#include "io/base/json.h"

namespace tri {

// Rounds to five digits. JSON has no NaN or infinity: they become null.
inline nlohmann::ordered_json five_digits(double value) {
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

}  // namespace tri
