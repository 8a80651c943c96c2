// How config errors are put together.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>  // join

#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

inline constexpr size_t kMostShownErrors = 100;

// In one Error: a line each, then their number. Of very many the first ones only.
inline Error join_errors(const std::vector<std::string>& errors) {
  const char* noun = errors.size() == 1 ? "error" : "errors";
  if (errors.size() > kMostShownErrors)
    return usage_error("{}\n{} {}, of which the first {} are shown",
                       fmt::join(errors.begin(), errors.begin() + kMostShownErrors, "\n"), errors.size(), noun,
                       kMostShownErrors);
  return usage_error("{}\n{} {}", fmt::join(errors, "\n"), errors.size(), noun);
}

}  // namespace tri
