// The attempts of a run, from its history: when each lived, what became of its steps.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/fault/events.h"
#include "lib/observe/effective_time.h"

namespace tri {

// All times are seconds since 1970, moved by what makes no attempt begin before the one before it has ended. 0: not
// known. submitted <= allocated <= began <= started <= end, where they are known.
struct RunAttempt {
  struct Span {
    WallTime what;
    double begin, end;
  };
  std::string name, job;
  double submitted = 0, allocated = 0;                  // its job
  double began = 0;                                     // its processes
  std::string boot;                                     // ... on which boot of a machine; "": not known
  double uptime = 0;                                    // ... and its monotonic clock then
  std::optional<double> started;                        // its steps
  double end = 0;                                       // its last sign of life
  std::vector<std::pair<std::string, double>> startup;  // phases and their seconds
  std::vector<Span> spans;
  std::vector<StepLine> steps;
  int64_t first_step = 0;                              // done before its own
  int64_t kept = std::numeric_limits<int64_t>::max();  // of its steps those up to here were not lost
  std::optional<RunEvent> cause;                       // what ended it, where it failed
  double cause_time = 0;                               // since when it was no use
  std::optional<RunEvent> ended;                       // its end in good order
  bool of_the_job_of(const RunAttempt& earlier) const { return !job.empty() && job == earlier.job; }
};

// In the order in which they got the run folder, without those that never did.
std::vector<RunAttempt> run_attempts(const EventsAndSteps& history);

}  // namespace tri
