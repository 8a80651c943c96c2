// `trireme bench step --sweep layout`.
#pragma once

#include <string>
#include <vector>

#include "lib/bench/sweep.h"

namespace tri {

extern const char* const kSweepHelp;  // which layouts are tried, in which order

// Runs and prints it. Collective.
Result<void> bench_layouts(const std::string& config, const std::vector<std::string>& overrides,
                           const LayoutSweep& sweep, bool json, Job& job);

}  // namespace tri
