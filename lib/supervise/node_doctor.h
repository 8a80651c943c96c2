// Runs `trireme doctor` on an agent's node at the driver's request.
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

  // Starts one process that examines the node and its first GPU, and one for each of `other_gpus` that examines its
  // clocks under load, all at the same time.
  // `timeout`: seconds after which the result is no longer needed.
  void start(double timeout, const std::vector<std::string>& other_gpus = {});
  // Returns the worst exit status of the processes started last, or -1 if none was started or some still run. 127: one
  // could not be started.
  int status();
  // Returns their findings, one per line; each is returned once.
  std::vector<std::string> take_findings();

 private:
  struct Part {
    pid_t process = -1;
    Descriptor output;  // a file without a name
  };
  void start_part(const std::vector<std::string>& words, const std::string& gpu);

  std::string program_;
  std::vector<Part> parts_;  // running processes
  int status_ = -1;          // of those that have ended
  std::vector<std::string> findings_;
};

// Returns the GPUs of a node except for the first, as CUDA_VISIBLE_DEVICES names them. `visible`: its value, or null if
// it is not set and the node has `count` GPUs.
std::vector<std::string> other_gpus(const char* visible, size_t count);

// Returns the time limit of each of the doctor's checks in whole seconds: two thirds of the driver's timeout, at least
// one.
int check_seconds(double timeout);

// Returns the worse of two exit statuses of the doctor, in the order bad, suspect, inconclusive, healthy.
int worse_status(int a, int b);

// Parses the output of `trireme doctor --json` into lines "doctor: bad: TEXT", the worst first; none if it is not a
// report.
std::vector<std::string> doctor_findings(std::string_view json);

}  // namespace tri
