// Flight recorder files that were left behind.
#pragma once

#include <string>

namespace tri {

// Removes this user's files on this machine whose process has ended: those of the run in `run_dir` (absolute), which is
// about to start, and those of any other run once they are older than a day. Until then `trireme status` shows what
// ended that run. Files of other versions of the program and of other containers count too. Returns how many it
// removed.
int remove_stale_records(const std::string& run_dir);

}  // namespace tri
