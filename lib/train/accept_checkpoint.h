// Whether a run may go on from a checkpoint, by what has changed in its config.
#pragma once

#include <string>

#include "io/checkpoint/manifest.h"
#include "lib/config/config.h"

namespace tri {

// `config`: resolved, as the run would keep it in a checkpoint of its own. The log tells every field that differs from
// the config with which `manifest`, of the checkpoint in `folder`, was saved. Error (kUsage), naming each field with
// both values: a field that is fixed for the life of a checkpoint differs, and checkpoint.accept_changes does not say
// that this is meant. For one rank of the job.
Result<void> accept_checkpoint(const Config& config, const std::string& folder, const Manifest& manifest);

}  // namespace tri
