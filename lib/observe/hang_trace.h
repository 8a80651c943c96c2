// The last moments of a hang as a trace for Perfetto, from the records of a dump: what each rank's host did and
// enqueued, from the rings of its flight recorder, and the transfers that were on their way when it was dumped.
#pragma once

#include <span>
#include <string>

#include "io/base/error.h"
#include "io/flight_recorder/record.h"

namespace tri {

// A process a rank, in it a track of phases, one of what the host was at, one of actions, and one a channel. A transfer
// that was not complete is a slice from its enqueueing to the dump. Clocks of hosts are their wall clocks.
Result<void> write_hang_trace(std::span<const RankRecord> records, const std::string& path);

}  // namespace tri
