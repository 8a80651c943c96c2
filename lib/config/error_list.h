// Combines config errors.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>  // join

#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

inline constexpr size_t kMostShownErrors = 100;

// Returns one Error with a line for each, then their number; lists only the first ones of very many.
inline Error join_errors(const std::vector<std::string>& errors) {
  const char* noun = errors.size() == 1 ? "error" : "errors";
  if (errors.size() > kMostShownErrors)
    return usage_error("{}\n{} {}, of which the first {} are shown",
                       fmt::join(errors.begin(), errors.begin() + kMostShownErrors, "\n"), errors.size(), noun,
                       kMostShownErrors);
  return usage_error("{}\n{} {}", fmt::join(errors, "\n"), errors.size(), noun);
}

}  // namespace tri
