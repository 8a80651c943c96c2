// How much memory a process of a CPU device can share. Plans need it before any memory is shared.
#pragma once

#include <cstdint>
#include <optional>

namespace tri {

// Returns the bytes of the largest block: this process's limit on file sizes (`ulimit -f`), which also applies to files
// in memory. None: there is no limit.
std::optional<int64_t> most_shared_cpu_bytes();

}  // namespace tri
