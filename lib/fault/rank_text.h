// Texts about ranks and their activities.
#pragma once

#include <string>
#include <vector>

#include "io/flight_recorder/record.h"

namespace tri {

// Returns "rank 3", or "ranks 3, 5-7, 9 and 12 more". `ranks` must be ascending; names at most `most` runs of them.
std::string ranks_text(const std::vector<int>& ranks, int most = 6);

// Returns what the rank was doing: "forward of microbatch 3, chunk 1, step 120", "checkpoint, step 120", "setup".
std::string doing_text(const RankRecord& record);

// Returns only the running action: "forward of microbatch 3, chunk 1", or "".
std::string action_text(const RankRecord& record);

// Returns the members of the rank's connection; if none are listed, it may be all ranks.
std::vector<int> connection_members(const RankRecord& record);

// Returns, for a writer that is not idle, "writer of checkpoint 100 publishes".
std::string writer_text(const WriterRecord& writer);

// Returns the seconds since the rank's training last showed progress.
double silent_seconds(const RankRecord& record);

}  // namespace tri
