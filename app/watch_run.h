// trireme status --watch: a screen that follows a run.
#pragma once

#include <string>

#include "io/base/error.h"

namespace tri {

// Draws the run of `run_dir` at intervals until it is interrupted; once, if there is no terminal. Fails with kUsage if
// it is not the folder of a run.
Result<void> watch_run(const std::string& run_dir, double seconds);

}  // namespace tri
