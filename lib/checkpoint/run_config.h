// Reads the config of a run from its folder.
#pragma once

#include <optional>
#include <string>

#include "lib/config/config.h"

namespace tri {

struct RunConfigFile {
  std::string path;
  Config config;
};

// Reads resolved.yaml of `folder`, the config with which the run last ran, or config.yaml if there is only that (an
// imported model). Returns none if it is not a run's folder.
Result<std::optional<RunConfigFile>> read_run_config(const std::string& folder);

}  // namespace tri
