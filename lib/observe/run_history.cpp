// What a run folder says of its run's time.
#include <cstdlib>
#include <fstream>

#include "lib/observe/effective_time.h"

namespace tri {
namespace {

// Metrics may be millions of lines: the few numbers that are wanted are found without a parser.
std::optional<double> number_in(const std::string& line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == line.npos) return std::nullopt;
  const char* const begin = line.c_str() + at + key.size();
  char* end = nullptr;
  const double value = std::strtod(begin, &end);
  return end == begin ? std::nullopt : std::optional(value);
}

void take_line(const std::string& line, AttemptSteps& steps) {
  if (line.empty() || line.front() != '{' || line.back() != '}') return;  // torn
  const auto step = number_in(line, "\"step\":");
  const auto time = number_in(line, "\"time\":");
  if (!step || !time) return;
  if (const auto ms = number_in(line, "\"step_ms\":"))
    steps.steps.push_back({.time = *time,
                           .seconds = *ms / 1000,
                           .data_seconds = number_in(line, "\"data_ms\":").value_or(0) / 1000,
                           .step = static_cast<int64_t>(*step)});
  if (line.find("\"checkpoint_bytes\":") != line.npos)
    steps.newest_checkpoint = std::max(steps.newest_checkpoint, static_cast<int64_t>(*step));
}

}  // namespace

Result<EventsAndSteps> read_events_and_steps(const std::string& run_dir) {
  auto events = read_events(run_dir + "/events.jsonl");
  if (!events) return events.error();
  EventsAndSteps history{.events = std::move(events).value()};
  std::vector<int64_t> begins;  // of the attempts' lines, in bytes
  for (const RunEvent& event : history.events) {
    if (event.kind != RunEventKind::kStart || !event.fields.contains("metrics_bytes")) continue;
    history.steps.push_back({.attempt = event.attempt});
    begins.push_back(static_cast<int64_t>(event.number("metrics_bytes", 0)));
  }
  std::ifstream metrics(run_dir + "/metrics.jsonl");
  size_t attempts = 0;  // that have begun at this place of the file
  int64_t at = 0;
  for (std::string line; std::getline(metrics, line); at += static_cast<int64_t>(line.size()) + 1) {
    while (attempts < begins.size() && begins[attempts] <= at) ++attempts;
    if (attempts > 0) take_line(line, history.steps[attempts - 1]);
  }
  return history;
}

}  // namespace tri
