#pragma once
#include <string>

namespace tri {

// Version and commit on one line, for the head of a log: "0.1.0, commit 1a2b3c4d5e6f, modified".
std::string version_line();
std::string version_number();  // "0.1.0"
// What `trireme --version` prints: version, commit, compilers, and the libraries that this process runs with, a line
// each; one that the build saw in another version says so.
std::string version_text();
// The same as one JSON object: version, commit, modified, compilers {cxx, cuda}, build, and libraries: by name {runs,
// built_with}, null for one that is not there.
std::string version_json();

}  // namespace tri
