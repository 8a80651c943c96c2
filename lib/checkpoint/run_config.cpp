#include "lib/checkpoint/run_config.h"

#include <filesystem>

namespace tri {

Result<std::optional<RunConfigFile>> read_run_config(const std::string& folder) {
  std::error_code ignored;
  for (const char* name : {"/resolved.yaml", "/config.yaml"}) {
    const std::string path = folder + name;
    if (!std::filesystem::exists(path, ignored)) continue;
    const auto text = read_config_text(path);
    if (!text) return text.error();
    auto config = parse_saved_config(text.value(), path);
    if (!config) return config.error();
    return std::optional<RunConfigFile>({path, std::move(config).value()});
  }
  return std::optional<RunConfigFile>();
}

}  // namespace tri
