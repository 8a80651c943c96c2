// Runs other programs that read this program's files.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace tri {

// Returns what the command prints on either stream, preceded by "status N: " if it fails.
inline std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "no pipe";
  char buffer[4096];
  for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  const int status = ::pclose(pipe);
  return status == 0 ? text : fmt::format("status {}: {}", status, text);
}

// Returns a Python that has h5py: TRIREME_TEST_PYTHON, or python3. "": none has it.
inline std::string python_with_h5py() {
  const char* const set = std::getenv("TRIREME_TEST_PYTHON");
  for (const char* python : {set != nullptr ? set : "python3", "/usr/bin/python3"})
    if (output_of(fmt::format("{} -c 'import h5py; print(1)'", python)) == "1\n") return python;
  return "";
}

}  // namespace tri
