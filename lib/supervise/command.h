// Runs commands of other programs: scontrol, squeue, sinfo, srun.
#pragma once

#include <string>
#include <vector>

namespace tri {

struct CommandResult {
  int status = 127;    // the exit status; 127: the command could not be run; 128 + N: signal N ended it
  std::string output;  // its standard output
  bool timed_out = false;
  bool ok() const { return status == 0; }
};

enum class CommandErrors { kDrop, kShow };  // whether the command's standard error is shown

// Runs a command without a shell and waits for it. Ends it after `timeout` seconds, and returns within 15 s more even
// if it does not end. If a signal has ended the command, for example one to all processes of a job, runs it again, at
// most three times.
CommandResult run_command(const std::vector<std::string>& words, double timeout,
                          CommandErrors errors = CommandErrors::kDrop);

std::vector<std::string> split_lines(const std::string& text);  // without empty ones

}  // namespace tri
