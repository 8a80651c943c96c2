// Whether a run may go on from a checkpoint, by what has changed in its config.
#pragma once

#include <string>

#include "io/checkpoint/manifest.h"
#include "lib/config/config.h"

namespace tri {

// `config`: resolved, as the run would keep it in a checkpoint of its own. The log tells every field that differs from
// the config with which `manifest`, of the checkpoint in `folder`, was saved. Error (kUsage), naming each field with
// both values: a field that is fixed for the life of a checkpoint differs, and checkpoint.accept_changes does not say
// that this is meant. The error names accept_changes only where the weights keep their shapes. For one rank of the job.
Result<void> accept_checkpoint(const Config& config, const std::string& folder, const Manifest& manifest);

// A line when the learning rate of the next step, after `steps`, is far from that of the last one because the schedule
// has changed; it names both rates and how to keep either the schedule or the rate. "" when it is not. Both resolved.
std::string rate_warning(const Config& before, const Config& now, int64_t steps);

}  // namespace tri
