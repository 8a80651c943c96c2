// Storage as it is without us: floors for the checkpoint bench.
#pragma once

#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

// As dd does: one block of memory over and over, then fsync.
Result<void> plain_write(const std::string& path, int64_t bytes);

// All of `paths` once, one after the other, through one block of memory.
Result<void> plain_read(const std::vector<std::string>& paths);

// Requests that the page cache drops the files, which are on storage; returns whether it did.
Result<bool> drop_from_cache(const std::vector<std::string>& paths);

// Waits until what is pending in the file system of `folder` is on storage, so that it does not disturb what follows.
void wait_for_writeback(const std::string& folder);

}  // namespace tri
