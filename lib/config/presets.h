// The run configs of configs/ and the cluster of configs/clusters/h100.yaml, embedded as text.
#pragma once

#include <span>
#include <string_view>

namespace tri {

struct Preset {
  std::string_view name;  // "llama_8b" for configs/llama_8b.yaml
  std::string_view yaml;
};

std::span<const Preset> presets();       // by name
std::string_view preset_cluster_h100();  // for parse_cluster (lib/simulate/cluster.h)

}  // namespace tri
