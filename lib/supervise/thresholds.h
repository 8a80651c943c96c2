// The limits by which the driver judges. run.dir/supervise.conf, a YAML map of names and numbers, changes them while
// the run goes on. Names that are missing have their defaults.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

struct Thresholds {
  double silent_seconds = 15;   // without a report of its agent, and with three probes unanswered, the node is lost
  double stopped_seconds = 10;  // a rank is stopped, others are not: the attempt is ended; 0: the watchdog decides
  double begin_seconds =
      60;                   // a rank has not begun, others have: the same; 4 times this if it has not started; 0: never
  double gone_seconds = 5;  // a rank has ended and the launcher has not noticed: the same
  double start_seconds = 120;   // until the agents of all nodes have reported
  double end_seconds = 30;      // until the ranks of an attempt that is being ended are gone
  double exclusion_hours = 24;  // how long a node is excluded
  double repeat_hours = 24;     // faults of a node further apart are not counted together
  double flap_seconds = 300;    // two losses of the carrier of a port in use within these exclude its node
  double port_errors =
      100;  // of the ports in use of a node within flap_seconds: it is suspect when an attempt fails; 0: never
  double attempts = 3;         // consecutive ones without a newer checkpoint after which the run stops
  double doctor_seconds = 60;  // timeout of `trireme doctor`
  double drain_seconds = 300;  // how long ranks that drain for a spare may take to save a checkpoint
};

// Error: every problem of the file, by its line, with the nearest name or the numbers that are allowed.
Result<Thresholds> thresholds_from(std::string_view text, const std::string& source);
// Of the run folder; the defaults where there is no file.
Result<Thresholds> read_thresholds(const std::string& run_dir);

}  // namespace tri
