// Whole text files, also those of /proc and /sys, whose size the kernel does not report.
#pragma once

#include <string>

#include "io/base/error.h"

namespace tri {

// All bytes of the file at `path`. Error, with the path and os_error, if any part of it cannot be read.
Result<std::string> read_text(const std::string& path);

// For facts about the machine, where a file that cannot be read means that the fact is unknown:
// all bytes of the file at `path`; "" if it cannot be read.
std::string text_of(const std::string& path);
// Its first line without the line end; "" if it cannot be read.
std::string first_line_of(const std::string& path);

}  // namespace tri
