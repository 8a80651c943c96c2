// How much memory a process of a CPU device can share, for plans that are made before any is shared.
#pragma once

#include <cstdint>
#include <optional>

namespace tri {

// Bytes of the largest block: this process's limit on a file's size (`ulimit -f`), which also holds for files in
// memory. None: it is not limited.
std::optional<int64_t> most_shared_cpu_bytes();

}  // namespace tri
