// A cluster file describes machines for the simulator. lib/simulate/cluster_fields.def defines the constants with their
// defaults, limits and meanings. configs/clusters/ has files for known machines, with the source of each constant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"

namespace tri {

#define SECTION(type, name, title) struct type {
#define FIELD(type, name, default_value, allowed, meaning) type name = default_value;
#define END_SECTION(type)                       \
  bool operator==(const type&) const = default; \
  }                                             \
  ;
#include "lib/simulate/cluster_fields.def"

// The measured rate of a GEMM (m, k) times (k, n).
struct MeasuredGemm {
  double m, n, k;
  double tflops;
  double scatter;  // standard deviation over mean
  bool operator==(const MeasuredGemm&) const = default;
};

struct Cluster {
#define SECTION(type, name, title) type name;
#define FIELD(type, name, default_value, allowed, meaning)
#define END_SECTION(type)
#include "lib/simulate/cluster_fields.def"
  // Measured rates for the program's compute type. If there are any, they replace gemm_share, tiles and waves.
  std::vector<MeasuredGemm> gemms;
  double uncertainty = 0;             // relative uncertainty of a prediction, from the calibration; 0: unknown
  std::vector<std::string> defaults;  // constants that the file omits: "node.latency_us"
};

// Fails with kUsage, with one line per problem, for a missing or unreadable file, unknown keys (the nearest known one
// is named), values out of range and wrong types. `overrides`: "section.key=value".
Result<Cluster> parse_cluster(std::string_view yaml_text, const std::string& file_name,
                              const std::vector<std::string>& overrides);
Result<Cluster> read_cluster(const std::string& path, const std::vector<std::string>& overrides = {});
// Reads and parses a run config. Fails with kUsage like parse_config, and names a cluster file as such.
Result<Config> read_run_config(const std::string& path, const std::vector<std::string>& overrides);

// Writes every constant of every section; parse_cluster returns an equal Cluster.
std::string to_yaml(const Cluster& cluster);

// Lists every constant by section: default, allowed values, meaning.
std::string cluster_help();

}  // namespace tri
