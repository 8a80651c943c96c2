// Reads whole text files, including those of /proc and /sys, whose size the kernel does not report.
#pragma once

#include <string>

#include "io/base/error.h"

namespace tri {

// Returns all bytes of the file at `path`. Fails with the path and os_error if any part of it cannot be read.
Result<std::string> read_text(const std::string& path);

// For facts about the machine that are unknown if the file cannot be read: returns all bytes of the file at `path`, or
// "" if it cannot be read.
std::string text_of(const std::string& path);
// Returns its first line without the line end, or "" if it cannot be read.
std::string first_line_of(const std::string& path);

}  // namespace tri
