// The run configs of configs/ and a cluster of H100, embedded as text.
#pragma once

#include <span>
#include <string_view>

namespace tri {

struct Preset {
  std::string_view name;  // "llama_8b" for configs/llama_8b.yaml
  std::string_view yaml;
};

std::span<const Preset> presets();  // by name
// For parse_cluster (lib/simulate/cluster.h): this program's file for H100, or another program's if there is none.
std::string_view preset_cluster_h100();

}  // namespace tri
