// Plain storage operations, as a reference for the checkpoint bench.
#pragma once

#include <string>
#include <vector>

#include "io/base/error.h"

namespace tri {

// Writes like dd: one block of memory repeatedly, then fsync.
Result<void> plain_write(const std::string& path, int64_t bytes);

// Reads each of `paths` once, one after another, through one block of memory.
Result<void> plain_read(const std::vector<std::string>& paths);

// Requests the page cache to drop the files, which must be on storage. Returns whether it did.
Result<bool> drop_from_cache(const std::vector<std::string>& paths);

// Waits until pending writes to the file system of `folder` are on storage, so that they do not disturb a measurement.
void wait_for_writeback(const std::string& folder);

}  // namespace tri
