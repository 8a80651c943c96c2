// Texts about ranks and what they do.
#pragma once

#include <string>
#include <vector>

#include "io/flight_recorder/record.h"

namespace tri {

// "rank 3", "ranks 3, 5-7, 9 and 12 more": `ranks` in ascending order, of which at most `most` runs are named.
std::string ranks_text(const std::vector<int>& ranks, int most = 6);

// What the rank was doing: "forward of microbatch 3, chunk 1, step 120", "checkpoint, step 120", "setup".
std::string doing_text(const RankRecord& record);

// The running action alone: "forward of microbatch 3, chunk 1"; "": there is none.
std::string action_text(const RankRecord& record);

// The members of the rank's connection; none: it may be all ranks.
std::vector<int> connection_members(const RankRecord& record);

// "writer of checkpoint 100 publishes": of a writer that is not idle.
std::string writer_text(const WriterRecord& writer);

// Seconds since the training of the rank last showed any progress.
double silent_seconds(const RankRecord& record);

}  // namespace tri
