// `trireme check`: what a config will do on a given number of ranks, without starting it.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace tri {

// Topology, batch arithmetic, layers, parameters, bytes by name, FLOPs and bubble. `config` resolved for `ranks`.
// The bytes come from running the set-up on a measuring arena: what a run's own table prints.
std::string check_report(const Config& config, int ranks);

}  // namespace tri
