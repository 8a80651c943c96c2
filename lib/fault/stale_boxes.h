// Black boxes that nobody needs any more.
#pragma once

#include <string>

namespace tri {

// Removes boxes of this user on this machine whose process is gone: those of the run in `run_dir` (absolute), which
// begins anew, and of any other run those older than a day. Returns how many.
int remove_stale_boxes(const std::string& run_dir);

}  // namespace tri
