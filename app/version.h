#pragma once
#include <string>

namespace tri {

// Returns version and commit on one line, for the head of a log: "0.1.0, commit 1a2b3c4d5e6f, modified".
std::string version_line();
std::string version_number();  // "0.1.0"
// Returns the output of `trireme --version`: version, commit, compilers, and one line per library that this process
// uses, with the version at build time if that differs.
std::string version_text();
// Returns the same as one JSON object: version, commit, modified, compilers {cxx, cuda}, build, and libraries by name:
// {runs, built_with}, null for a library that is not present.
std::string version_json();

}  // namespace tri
