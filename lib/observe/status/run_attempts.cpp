#include "lib/observe/status/run_attempts.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace tri {
namespace {

constexpr std::string_view kStartupField = "startup.";

// Whether only a holder of the run folder writes such an event.
bool holds_folder(const RunEvent& event) {
  return event.kind == RunEventKind::kBegin || event.kind == RunEventKind::kStart;
}

bool is_part_of_attempt(WallTime what) { return what == WallTime::kCheckpoint || what == WallTime::kEvaluation; }

// Events that others write about an attempt later, or before it holds the folder, do not count.
bool is_sign_of_life(const RunEvent& event) {
  switch (event.kind) {
    case RunEventKind::kSpan: {
      const auto what = enum_from_name<WallTime>(event.string("what"));
      return what && is_part_of_attempt(*what);
    }
    case RunEventKind::kAttemptStart:
    case RunEventKind::kDecision:
    case RunEventKind::kExclusion:
    case RunEventKind::kClearExclusion:
      return false;
    default:
      return true;
  }
}

void take_begin(const RunEvent& event, RunAttempt& attempt) {
  const auto before = [&](const char* field, double latest) {
    const double time = event.number(field, 0);
    return time > 0 ? std::min(time, latest) : 0;
  };
  attempt.began = event.time;
  if (const double began = before("began", event.time); began > 0) attempt.began = began;
  attempt.boot = event.string("boot");
  attempt.uptime = event.number("uptime", 0);
  attempt.allocated = before("allocated", attempt.began);
  attempt.submitted = before("submitted", attempt.allocated > 0 ? attempt.allocated : attempt.began);
}

void take_start(const RunEvent& event, RunAttempt& attempt) {
  if (attempt.began == 0) attempt.began = event.time;  // its kBegin event is lost
  attempt.started = std::max(event.time, attempt.began);
  attempt.first_step = static_cast<int64_t>(event.number("step", 0));
  attempt.origin = describe_origin(event);
  for (const auto& [name, value] : event.fields)
    if (name.starts_with(kStartupField))
      attempt.startup.emplace_back(name.substr(kStartupField.size()), std::max(0.0, event.number(name, 0)));
}

void take_span(const RunEvent& event, RunAttempt& attempt) {
  const auto what = enum_from_name<WallTime>(event.string("what"));
  const double seconds = event.number("seconds", 0);
  if (what && seconds > 0) attempt.spans.push_back({*what, event.time - seconds, event.time});
}

// Returns the driver's cause of an attempt whose ranks could not report one, for example on a node without power. The
// attempt failed after its last progress or, before its first step, when the driver noticed.
std::optional<RunEvent> drivers_cause(std::span<const RunEvent> events, const RunAttempt& attempt) {
  for (const RunEvent& event : events) {
    if (!is_drivers_failure(event)) continue;
    double progress = attempt.started.value_or(event.number("noticed", event.time));
    for (const StepLine& step : attempt.steps) progress = std::max(progress, step.time);
    for (const RunAttempt::Span& span : attempt.spans)
      if (is_part_of_attempt(span.what)) progress = std::max(progress, span.end);
    RunEvent known = event;
    known.fields["began"] = progress;
    return known;
  }
  return std::nullopt;
}

// A hang that is followed by steps did not end the attempt.
std::optional<RunEvent> cause_of(std::span<const RunEvent> events, const RunAttempt& attempt) {
  if (attempt.ended) return std::nullopt;
  auto cause = first_cause(events, attempt.name);
  const auto later = [&](const StepLine& step) { return step.time > cause->time; };
  if (cause && cause->kind == RunEventKind::kHang && std::any_of(attempt.steps.begin(), attempt.steps.end(), later))
    cause.reset();
  return cause ? cause : drivers_cause(events, attempt);
}

// `events`: the attempt's own, in file order.
RunAttempt attempt_of(std::span<const RunEvent> events, const AttemptSteps* steps) {
  // The driver of a supervised run may write before the attempt holds the folder.
  const auto holder = std::find_if(events.begin(), events.end(), holds_folder);
  RunAttempt attempt{.name = events.front().attempt, .job = holder->job};
  for (const RunEvent& event : events) {
    if (event.kind == RunEventKind::kBegin) take_begin(event, attempt);
    if (event.kind == RunEventKind::kStart) take_start(event, attempt);
    if (event.kind == RunEventKind::kSpan) take_span(event, attempt);
    if (event.kind == RunEventKind::kEnd) attempt.ended = event;
  }
  if (steps != nullptr) attempt.steps = steps->steps;
  attempt.cause = cause_of(events, attempt);

  attempt.end = std::max(attempt.began, attempt.started.value_or(0));
  for (const RunEvent& event : events)
    if (is_sign_of_life(event)) attempt.end = std::max(attempt.end, event.time);
  for (const StepLine& step : attempt.steps) attempt.end = std::max(attempt.end, step.time);
  if (attempt.cause)
    attempt.cause_time = std::clamp(attempt.cause->number("began", attempt.cause->time), attempt.began, attempt.end);
  return attempt;
}

void move_by(double seconds, RunAttempt& attempt) {
  if (attempt.submitted > 0) attempt.submitted += seconds;
  if (attempt.allocated > 0) attempt.allocated += seconds;
  attempt.began += seconds;
  if (attempt.started) *attempt.started += seconds;
  attempt.end += seconds;
  attempt.cause_time += seconds;
  for (RunAttempt::Span& span : attempt.spans) span.begin += seconds, span.end += seconds;
  for (StepLine& step : attempt.steps) step.time += seconds;
}

// If both attempts began on the same boot of one machine, the monotonic clock dates the later one, because the wall
// clock may have been set in between. Dates from the scheduler stay unchanged.
void date_by_uptime(const RunAttempt& earlier, RunAttempt& attempt) {
  constexpr double kSet = 1;  // seconds; a smaller difference is clock drift
  if (attempt.boot.empty() || attempt.boot != earlier.boot || attempt.uptime < earlier.uptime) return;
  const double moved = earlier.began + (attempt.uptime - earlier.uptime) - attempt.began;
  if (std::abs(moved) < kSet) return;
  const double submitted = attempt.submitted, allocated = attempt.allocated;
  move_by(moved, attempt);
  attempt.allocated = std::min(allocated, attempt.began);
  attempt.submitted = std::min(submitted, attempt.allocated > 0 ? attempt.allocated : attempt.began);
}

// A step is lost if a later attempt began before it. The last attempt's steps after its newest checkpoint are lost if
// it has ended without completing the run.
void find_lost_steps(const EventsAndSteps& history, std::vector<RunAttempt>& attempts) {
  if (attempts.empty()) return;
  int64_t kept = std::numeric_limits<int64_t>::max();
  const RunAttempt& last = attempts.back();
  if (last.cause || (last.ended && last.ended->number("code", 0) != 0)) {
    kept = last.first_step;
    for (const AttemptSteps& steps : history.steps)
      if (steps.attempt == last.name) kept = std::max(kept, steps.newest_checkpoint);
    if (!last.started) kept = std::numeric_limits<int64_t>::max();  // it can't have lost any
  }
  for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
    attempt->kept = kept;
    if (attempt->started) kept = std::min(kept, attempt->first_step);
  }
}

}  // namespace

bool is_drivers_failure(const RunEvent& event) {
  const std::string cause = event.string("cause");
  return event.kind == RunEventKind::kAttemptEnd && !cause.empty() && cause != "finished" && cause != "drained" &&
         cause != "set aside";
}

std::vector<RunAttempt> run_attempts(const EventsAndSteps& history) {
  struct Lines {
    size_t first;  // index in the file of the first event that shows that the attempt holds the folder
    std::string attempt;
  };
  std::vector<Lines> order;
  for (size_t i = 0; i < history.events.size(); ++i) {
    const RunEvent& event = history.events[i];
    const auto same = [&](const Lines& lines) { return lines.attempt == event.attempt; };
    if (holds_folder(event) && std::none_of(order.begin(), order.end(), same)) order.push_back({i, event.attempt});
  }
  std::vector<RunAttempt> attempts;
  for (size_t k = 0; k < order.size(); ++k) {
    // Events of its ranks after the next attempt has begun are too late to count.
    const size_t end = k + 1 < order.size() ? order[k + 1].first : history.events.size();
    std::vector<RunEvent> own;
    for (size_t i = 0; i < end; ++i)
      if (history.events[i].attempt == order[k].attempt) own.push_back(history.events[i]);
    const AttemptSteps* steps = nullptr;
    for (const AttemptSteps& written : history.steps)
      if (written.attempt == order[k].attempt) steps = &written;
    attempts.push_back(attempt_of(own, steps));
    if (k > 0) date_by_uptime(attempts[k - 1], attempts[k]);
    if (k > 0 && attempts[k].began < attempts[k - 1].end) move_by(attempts[k - 1].end - attempts[k].began, attempts[k]);
  }
  find_lost_steps(history, attempts);
  return attempts;
}

}  // namespace tri
