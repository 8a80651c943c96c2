// Removes flight recorder files that ended runs have left.
#pragma once

#include <string>

namespace tri {

// Removes this user's files on this machine whose process has ended: those of the run in `run_dir` (absolute), which is
// about to start, and those of any other run once they are older than a day. Until then `trireme status` shows what
// ended that run. Includes files of other versions of the program and of other containers. Returns the number of
// removed files.
int remove_stale_records(const std::string& run_dir);

}  // namespace tri
