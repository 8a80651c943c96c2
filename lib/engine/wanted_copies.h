// Return whether the config selects copies into the peers' memory on an axis, if the memory can be opened.
#pragma once

#include "lib/config/config.h"
#include "lib/parallel/stage_ring.h"

namespace tri {

bool wants_tp_copies(const Config& config);
bool wants_dp_copies(const Config& config);
bool wants_pp_copies(const Config& config);
bool wants_ep_copies(const Config& config);

// Only interleaved chunks close the ring of stages.
RingEnd ring_end(const Config& config);

}  // namespace tri
