// The report as text for a terminal, and the screen that follows a run.
#pragma once

#include <string>
#include <vector>

#include "lib/observe/status/run_status.h"
#include "lib/report/run_data.h"
#include "lib/report/terminal.h"

namespace tri {

inline constexpr int kTextLines = 40, kTextColumns = 100;

// Returns at most kTextLines lines for any number of runs: the contents of the page as text and small charts.
std::string report_text(const std::vector<RunData>& runs, int columns = kTextColumns);

// What the keys of the screen choose.
struct LiveChoice {
  bool linear = false;   // the loss
  bool paused = false;   // the screen stays as it is
  bool slowest = false;  // what the slowest rank does, instead of the heat map
  bool help = false;     // the keys, instead of everything else
  size_t quantity = 0;   // of the heat map: of heat_quantities()

  // Returns whether the key is one of the screen's.
  bool press(char key, size_t num_quantities);
};

// What the screen shows besides a run's status.
struct LiveView {
  const RunStatus& status;
  const RunMetrics& metrics;
  std::vector<std::string> heat = {};  // lines of a heat map; none: there is no ranks.h5
  std::vector<Incident> incidents = {};
  std::vector<std::string> log = {};  // the last lines of log.txt
  std::string name, clock;            // run.name; the time of day
  double now = 0;                     // seconds since 1970
  size_t attempts = 0;                // begun so far
  LiveChoice choice = {};
};

// Returns as many lines as the screen has, or fewer if there is less to show; none is wider than the screen, not
// counting colours. A small screen omits the less important parts: first the heat map, then the curve, then the events.
std::vector<std::string> live_screen(const LiveView& view, ScreenSize size);

// Returns the mean parts of the last steps, largest first.
struct NamedShare;
std::vector<NamedShare> step_shares(const RunMetrics& metrics, size_t last_steps);

}  // namespace tri
