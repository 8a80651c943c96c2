// A whole run, from opened inputs to the closing summary: device, run folder, memory, state, steps.
#pragma once

#include <functional>
#include <string>

#include "lib/comm/job/job.h"
#include "lib/engine/job_plan.h"
#include "lib/fault/stop_deadline.h"
#include "lib/fault/stop_signals.h"
#include "lib/observe/metrics/startup.h"

namespace tri {

// How this start of a run came about: for its log and its folder.
struct RunStart {
  std::string config_path;  // the config file on the command line
  std::string command_line;
  std::string version;  // of the executable, with its commit
  const StopSignals& signals;
  StopDeadline& stop_deadline;
  std::function<void()> on_watched = nullptr;  // called when the run's watchdog starts
};

// Runs the job. Errors that the user can fix are the same on all ranks, and so is a stop signal that any rank receives
// before the first step (kDrained). `startup` has timed the phases before. Collective.
Result<void> run_training(const PlannedJob& planned, const RunStart& start, Job& job, StartupClock startup);

}  // namespace tri
