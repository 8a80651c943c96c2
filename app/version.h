#pragma once
#include <string>

namespace tri {

// Version and commit on one line, for the head of a log: "0.1.0, commit 1a2b3c4d5e6f, modified".
std::string version_line();
// What `trireme --version` prints: version, commit, compilers, and the libraries that this process runs with, a line
// each.
std::string version_text();

}  // namespace tri
