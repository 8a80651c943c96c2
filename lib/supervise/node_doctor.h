// `trireme doctor` on an agent's node, when the driver asks for it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/base/file.h"

namespace tri {

class NodeDoctor {
 public:
  explicit NodeDoctor(std::string program) : program_(std::move(program)) {}

  void start();
  // Exit status of the one that was started last; -1: it has not ended, or none was. 127: it could not be started.
  int status();
  // What it has found, a line each; told once.
  std::vector<std::string> take_findings();

 private:
  std::string program_;
  Descriptor output_;  // of the doctor under way, a file without a name
  pid_t process_ = -1;
  int status_ = -1;
  std::vector<std::string> findings_;
};

// Of `trireme doctor --json`: "doctor: bad: TEXT", the worst first. Nothing where the text is no such report.
std::vector<std::string> doctor_findings(std::string_view json);

}  // namespace tri
