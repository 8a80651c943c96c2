// Reads the events and steps of a run folder.
#include <algorithm>

#include "lib/observe/metrics/metrics_reader.h"
#include "lib/observe/status/effective_time.h"

namespace tri {
namespace {

size_t data_index() {
  const auto& names = StepTimes::names();
  return static_cast<size_t>(std::ranges::find(names, std::string_view("data")) - names.begin());
}

void take_line(std::string_view text, AttemptSteps& steps) {
  static const size_t data = data_index();
  const MetricsLine line = read_metrics_line(text);
  if (const auto* step = std::get_if<StepRecord>(&line); step != nullptr && step->time > 0 && step->step_ms >= 0)
    steps.steps.push_back({.time = step->time,
                           .seconds = step->step_ms / 1000,
                           .data_seconds = step->times_ms[data] / 1000,
                           .step = step->step});
  if (const auto* checkpoint = std::get_if<CheckpointRecord>(&line))
    steps.newest_checkpoint = std::max(steps.newest_checkpoint, checkpoint->step);
}

}  // namespace

Result<EventsAndSteps> read_events_and_steps(const std::string& run_dir) {
  auto events = read_events(run_dir + "/events.jsonl");
  if (!events) return events.error();
  EventsAndSteps history{.events = std::move(events).value()};
  std::vector<int64_t> begins;  // byte offsets of the attempts' lines
  for (const RunEvent& event : history.events) {
    if (event.kind != RunEventKind::kStart || !event.fields.contains("metrics_bytes")) continue;
    history.steps.push_back({.attempt = event.attempt});
    begins.push_back(static_cast<int64_t>(event.number("metrics_bytes", 0)));
  }
  size_t attempts = 0;  // attempts that have begun before this offset
  // If the file can't be read, there are no steps.
  (void)read_whole_lines(run_dir + "/metrics.jsonl", 0, [&](std::string_view line, int64_t at) {
    while (attempts < begins.size() && begins[attempts] <= at) ++attempts;
    if (attempts > 0) take_line(line, history.steps[attempts - 1]);
  });
  return history;
}

}  // namespace tri
