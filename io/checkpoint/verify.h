// Reads a whole checkpoint and compares every checksum.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

struct VerifyReport {
  int64_t files = 0, shards = 0, bytes = 0;  // looked at
  std::vector<std::string> problems;         // each names file, tensor, and what was found; in order of files
};

// Error when there is no valid manifest; everything else is a problem in the report. `progress`, when given, is told
// from any thread, one at a time, how many more bytes of shards were read.
Result<VerifyReport> verify(const std::string& folder, int threads,
                            const std::function<void(int64_t bytes)>& progress = nullptr);

}  // namespace tri
