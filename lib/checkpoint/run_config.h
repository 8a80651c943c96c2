// The config of the run whose folder is at hand.
#pragma once

#include <optional>
#include <string>

#include "lib/config/config.h"

namespace tri {

struct RunConfigFile {
  std::string path;
  Config config;
};

// resolved.yaml of `folder`, as the run last ran, else its config.yaml (an imported model has that alone). None: it is
// no run's folder.
Result<std::optional<RunConfigFile>> read_run_config(const std::string& folder);

}  // namespace tri
