// `trireme doctor` on an agent's node, at the driver's request.
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

  // One process examines the node and its first GPU, and one each the clocks under load of the `other_gpus`, all at the
  // same time.
  // `timeout`: after so many seconds the verdict is no longer needed.
  void start(double timeout, const std::vector<std::string>& other_gpus = {});
  // The worst exit status of those that were started last; -1: not all have ended, or none was. 127: one could not be
  // started.
  int status();
  // Their findings, one per line; reported once.
  std::vector<std::string> take_findings();

 private:
  struct Part {
    pid_t process = -1;
    Descriptor output;  // a file without a name
  };
  void start_part(const std::vector<std::string>& words, const std::string& gpu);

  std::string program_;
  std::vector<Part> parts_;  // under way
  int status_ = -1;          // of those that have ended
  std::vector<std::string> findings_;
};

// GPUs of a node except for the first, as CUDA_VISIBLE_DEVICES names them: `visible` is its value, null where it is not
// set and `count` GPUs are there.
std::vector<std::string> other_gpus(const char* visible, size_t count);

// How long each of the doctor's checks may take, in whole seconds: two thirds of the driver's timeout, at least one.
int check_seconds(double timeout);

// Of two exit statuses of the doctor the worse: bad, suspect, one that could not say, healthy.
int worse_status(int a, int b);

// Of `trireme doctor --json`: "doctor: bad: TEXT", the worst first. Nothing where the text is no such report.
std::vector<std::string> doctor_findings(std::string_view json);

}  // namespace tri
