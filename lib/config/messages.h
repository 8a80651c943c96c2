// How config errors are put together.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>  // join

#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

// All of them in one Error: a line each, then their number.
inline Error join_errors(const std::vector<std::string>& errors) {
  const char* noun = errors.size() == 1 ? "error" : "errors";
  return usage_error("{}\n{} {}", fmt::join(errors, "\n"), errors.size(), noun);
}

}  // namespace tri
