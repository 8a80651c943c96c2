// `trireme bench overlap`.
#pragma once

#include <string>
#include <vector>

#include "lib/bench/overlap.h"

namespace tri {

extern const char* const kOverlapHelp;  // what is measured, and the meaning of the columns

// Runs the benchmark and prints it. Collective.
Result<void> bench_overlaps(const std::string& config, const std::vector<std::string>& overrides,
                            const OverlapBench& bench, bool json, Job& job);

}  // namespace tri
