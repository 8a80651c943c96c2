// Reconstructs the attempts of a run from its history: when each was active, and which of its steps remain.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/fault/events.h"
#include "lib/observe/status/effective_time.h"

namespace tri {

// All times are seconds since 1970, shifted so that no attempt begins before the previous one has ended. 0: unknown.
// submitted <= allocated <= began <= started <= end, as far as they are known.
struct RunAttempt {
  struct Span {
    WallTime what;
    double begin, end;
  };
  std::string name, job;
  double submitted = 0, allocated = 0;                  // of its job
  double began = 0;                                     // of its processes
  std::string boot;                                     // ... the boot of their machine; "": unknown
  double uptime = 0;                                    // ... and its monotonic clock at that time
  std::string origin;                                   // describe_origin
  std::optional<double> started;                        // start of its steps
  double end = 0;                                       // its last activity
  std::vector<std::pair<std::string, double>> startup;  // phases and their seconds
  std::vector<Span> spans;
  std::vector<StepLine> steps;
  int64_t first_step = 0;                              // completed before its own
  int64_t kept = std::numeric_limits<int64_t>::max();  // its steps up to here were not lost
  std::optional<RunEvent> cause;                       // what ended it, if it failed
  double cause_time = 0;                               // when its progress ended
  std::optional<RunEvent> ended;                       // its end without an error
  bool of_the_job_of(const RunAttempt& earlier) const { return !job.empty() && job == earlier.job; }
};

// Whether the driver of a supervised run recorded with this event that an attempt failed.
bool is_drivers_failure(const RunEvent& event);

// Returns attempts in the order in which they obtained the run folder, without those that never did.
std::vector<RunAttempt> run_attempts(const EventsAndSteps& history);

}  // namespace tri
