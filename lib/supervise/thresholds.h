// The limits by which the driver judges. run.dir/supervise.conf, a YAML map of names and numbers, changes them during
// the run. Missing names have their defaults.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

struct Thresholds {
  double silent_seconds = 15;   // without reports and with three probes unanswered, the node is lost
  double stopped_seconds = 10;  // if only some ranks are stopped, the attempt is ended; 0: the watchdog decides
  double begin_seconds = 60;    // ranks may begin this much later than others, 4 times if not started; 0: no limit
  double gone_seconds = 5;      // a rank has ended and the launcher has not noticed: the attempt is ended
  double start_seconds = 120;   // time until the agents of all nodes have reported
  double end_seconds = 30;      // time until the ranks of an attempt that is being ended are gone
  double exclusion_hours = 24;  // how long a node is excluded
  double repeat_hours = 24;     // faults of a node further apart are counted separately
  double flap_seconds = 300;    // two carrier losses of a port in use within this time exclude its node
  double port_errors = 100;  // of a node's ports in use, within flap_seconds: it is suspect if an attempt fails; 0: off
  double attempts = 3;       // after this many consecutive ones without a newer checkpoint the run stops
  double doctor_seconds = 60;  // timeout of `trireme doctor`
  double drain_seconds = 300;  // how long ranks that drain for a spare may take to save a checkpoint
};

// Fails with every problem of the file, by line, with the nearest name or the allowed values.
Result<Thresholds> thresholds_from(std::string_view text, const std::string& source);
// The same for the run folder's file; returns the defaults if there is none.
Result<Thresholds> read_thresholds(const std::string& run_dir);

}  // namespace tri
