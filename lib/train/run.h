// A whole run, from opened inputs to the closing summary: device, run folder, memory, state, steps.
#pragma once

#include <functional>
#include <string>

#include "lib/comm/job.h"
#include "lib/engine/job_plan.h"
#include "lib/fault/stop_deadline.h"
#include "lib/fault/stop_signals.h"
#include "lib/observe/startup.h"

namespace tri {

// How a start of a run came about: for its log and its folder.
struct RunStart {
  std::string config_path;  // the file that it was given
  std::string command_line;
  std::string version;  // of the executable, with its commit
  const StopSignals& signals;
  StopDeadline& stop_deadline;
  std::function<void()> on_watched = nullptr;  // called when the run's watchdog looks on
};

// Collective. Errors that the user can fix come back equal on all ranks. A stop signal that any rank has received
// before the first step is one of them (kDrained). `startup` has timed what came before.
Result<void> run_training(const PlannedJob& planned, const RunStart& start, Job& job, StartupClock startup);

}  // namespace tri
