// trireme status --watch: a screen that follows a run.
#pragma once

#include <string>

#include "io/base/error.h"

namespace tri {

// Draws the run of `run_dir` every so many seconds until somebody ends it; once, where there is no terminal. Error
// (kUsage): it is not the folder of a run.
Result<void> watch_run(const std::string& run_dir, double seconds);

}  // namespace tri
