#include "app/watch_run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "io/base/clock.h"
#include "io/base/console.h"
#include "io/base/date.h"
#include "lib/observe/ranks/heat_map.h"
#include "lib/observe/status/run_status.h"
#include "lib/report/terminal.h"
#include "lib/report/text.h"

namespace tri {
namespace {

enum class Colours { kNone, kSome };

// Those of the heat map, compute first.
const std::vector<std::string>& quantities() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = heat_quantities();
    std::stable_partition(all.begin(), all.end(), [](const std::string& name) { return name == "compute"; });
    return all;
  }();
  return names;
}

// What is known of a run, brought up to date again and again.
class WatchedRun {
 public:
  explicit WatchedRun(const std::string& run_dir) : run_dir_(run_dir), reader_(run_dir + "/metrics.jsonl") {}

  // Error (kUsage): it is not the folder of a run.
  Result<std::vector<std::string>> screen(ScreenSize size, Colours colours, const LiveChoice& choice) {
    // The reader of metrics.jsonl knows all evaluations.
    const auto status = read_run_status(run_dir_, EvaluationSearch::kRecent);
    if (!status) return status.error();
    // Data that storage does not deliver now may come with the next update.
    if (auto read = reader_.poll(); !read && read.error().os_error == 0) return read.error();
    const auto event_log = read_events(run_dir_ + "/events.jsonl");
    const std::vector<RunEvent> events = event_log ? event_log.value() : std::vector<RunEvent>();
    return live_screen(
        {.status = status.value(),
         .metrics = reader_.metrics(),
         .heat =
             choice.slowest || choice.help ? std::vector<std::string>() : heat_lines(size, colours, choice.quantity),
         .incidents = incidents_of(events, std::nullopt, reader_.metrics()),
         .log = status.value().last_log_lines,
         .name = run_dir_.substr(run_dir_.find_last_of('/') + 1),
         .clock = local_date(wall_seconds(), "%T"),
         .now = wall_seconds(),
         .attempts = static_cast<size_t>(std::count_if(
             events.begin(), events.end(), [](const RunEvent& event) { return event.kind == RunEventKind::kBegin; })),
         .choice = choice},
        size);
  }

 private:
  // Of the newest window: a quantity of each rank against its role's. None: no window is there.
  std::vector<std::string> heat_lines(ScreenSize size, Colours colours, size_t quantity) const {
    std::vector<std::string> lines;
    const auto newest = newest_window(run_dir_);
    if (!newest) return lines;
    const auto& [mesh, window] = newest.value();
    const auto heat = heat_of(mesh, window, quantities()[quantity % quantities().size()]);
    if (!heat) return {heat.error().message};
    const HeatScreen part{.columns = size.columns,
                          .lines = std::max(kLeastHeat, size.lines / kHeatShare),
                          .colours = colours == Colours::kSome};
    std::istringstream text(heat_map_text(mesh, window, heat.value(), part));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  static constexpr int kHeatShare = 3;   // the heat map gets the screen's height divided by this
  static constexpr int kLeastHeat = 12;  // lines: one number per rank of two stages, in a terminal of 24

  std::string run_dir_;
  MetricsReader reader_;
};

bool colours_wanted() {
  const char* plain = std::getenv("NO_COLOR");
  return plain == nullptr || *plain == '\0';
}

}  // namespace

Result<void> watch_run(const std::string& run_dir, double seconds) {
  std::string dir = run_dir;
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  WatchedRun run(dir);
  if (!Screen::possible()) {
    const char* columns = std::getenv("COLUMNS");
    const ScreenSize size{.columns = columns == nullptr ? kTextColumns : std::atoi(columns), .lines = kTextLines};
    const auto lines = run.screen(size, Colours::kNone, {});
    if (!lines) return lines.error();
    for (const std::string& line : lines.value()) print_out("{}\n", line);
    return {};
  }
  const Colours colours = colours_wanted() ? Colours::kSome : Colours::kNone;
  if (auto first = run.screen({}, colours, {}); !first) return first.error();  // reported before the screen is switched
  Screen screen;
  LiveChoice choice;
  for (;;) {
    if (!choice.paused) {
      const auto lines = run.screen(screen.size(), colours, choice);
      if (!lines) return lines.error();
      screen.show(lines.value());
    }
    const ScreenEvent event = screen.wait(seconds);
    if (event == ScreenEvent::kQuit) return {};
    if (event != ScreenEvent::kKey || !choice.press(screen.key(), quantities().size())) continue;
    const auto lines = run.screen(screen.size(), colours, choice);  // a key has its effect at once, also while paused
    if (!lines) return lines.error();
    screen.show(lines.value());
  }
}

}  // namespace tri
