// `trireme bench step --sweep layout`.
#pragma once

#include <string>
#include <vector>

#include "lib/bench/sweep.h"

namespace tri {

extern const char* const kSweepHelp;  // which layouts are tried, and in which order

// Runs the benchmark and prints it. Collective.
Result<void> bench_layouts(const std::string& config, const std::vector<std::string>& overrides,
                           const LayoutSweep& sweep, bool json, Job& job);

}  // namespace tri
