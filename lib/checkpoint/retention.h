// Which checkpoints of a run stay, where nobody says it again.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace tri {

struct Retention {
  int keep_last = 1;       // checkpoint.keep_last
  int64_t keep_every = 0;  // checkpoint.keep_every
  std::string source;      // the file or checkpoint that says so
};

// Of the run whose folder, or folder of checkpoints, `path` is: by its resolved.yaml, else by its config.yaml, else by
// the newest valid checkpoint. One without any keeps as the defaults say; there is nothing to keep then.
Result<Retention> retention_of(const std::string& path);

}  // namespace tri
