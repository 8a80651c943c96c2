// System calls on files, by number.
#pragma once

namespace tri {

// Returns whether `number` (SYS_read, SYS_openat, ..., of this machine's architecture) is a call that can wait for
// storage.
bool is_file_system_call(long number);

}  // namespace tri
