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

// A GEMM's measured rate: (m, k) times (k, n).
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
  double uncertainty = 0;             // of a prediction, as a share of it, as the calibration found it; 0: unknown
  std::vector<std::string> defaults;  // constants that the file omits: "node.latency_us"
};

// A missing or unreadable file is a usage error, as are unknown keys (the nearest known one is named), values out of
// range and wrong types: every one of them in one Error, a line each. `overrides`: "section.key=value".
Result<Cluster> parse_cluster(std::string_view yaml_text, const std::string& file_name,
                              const std::vector<std::string>& overrides);
Result<Cluster> read_cluster(const std::string& path, const std::vector<std::string>& overrides = {});

// Every constant of every section; parse_cluster gives back an equal Cluster.
std::string to_yaml(const Cluster& cluster);

// Every constant by section: default, what is allowed, meaning.
std::string cluster_help();

}  // namespace tri
