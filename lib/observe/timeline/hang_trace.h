// Writes the last moments of a hang as a trace for Perfetto, from the records of a dump: what each rank's host did and
// enqueued, from its flight recorder's rings, and the transfers in progress at the dump.
#pragma once

#include <span>
#include <string>

#include "io/base/error.h"
#include "io/flight_recorder/record.h"

namespace tri {

// Each rank is a process, with tracks for phases, the host's activity, actions, and each channel. An incomplete
// transfer is a slice from its enqueueing to the dump. Times are the hosts' wall clocks. Replaces the file at `path`.
// Fails if it cannot be written.
Result<void> write_hang_trace(std::span<const RankRecord> records, const std::string& path);

}  // namespace tri
