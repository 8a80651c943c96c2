// The retention policy of a run, read from the run itself.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace tri {

struct Retention {
  int keep_last = 1;       // checkpoint.keep_last
  int64_t keep_every = 0;  // checkpoint.keep_every
  std::string source;      // the file or checkpoint that holds these values
};

// Returns the policy of the run whose folder, or folder of checkpoints, is `path`: from its resolved.yaml, else from
// its config.yaml, else from the newest valid checkpoint. Returns the defaults if there is none of these. Fails with
// kFile or kUsage if the file cannot be read.
Result<Retention> retention_of(const std::string& path);

}  // namespace tri
