// Reads a whole checkpoint and compares every checksum.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

struct VerifyReport {
  int64_t files = 0, shards = 0, bytes = 0;  // verified
  std::vector<std::string> problems;         // each names file, tensor, and what was found; in order of files
};

// Verifies a checkpoint on `threads` threads. Fails only without a valid manifest; everything else is a problem in the
// report. Calls `progress`, if given, from any thread, one at a time, with the number of further bytes read from
// shards.
Result<VerifyReport> verify(const std::string& folder, int threads,
                            const std::function<void(int64_t bytes)>& progress = nullptr);

}  // namespace tri
