#include "lib/supervise/history.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace tri {

std::string joined(std::span<const std::string> names) { return fmt::format("{}", fmt::join(names, ",")); }

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');)
    if (!name.empty()) names.push_back(name);
  return names;
}

RunHistory history_from(std::span<const RunEvent> events, double now) {
  RunHistory history;
  const auto whole = [](const RunEvent& event, const char* name) {
    return static_cast<int64_t>(event.number(name, 0));
  };
  for (const RunEvent& event : events) {
    const auto same_node = [&](const Exclusion& e) { return e.node == event.host; };
    const auto same_attempt = [&](const PastAttempt& a) { return a.attempt == event.attempt; };
    const bool is_known = std::any_of(history.attempts.begin(), history.attempts.end(), same_attempt);
    if (event.kind == RunEventKind::kAttemptStart && !is_known) {
      history.attempts.push_back({.number = whole(event, "number"),
                                  .attempt = event.attempt,
                                  .job = event.job,
                                  .nodes = split_names(event.string("nodes")),
                                  .began = event.time,
                                  .from_step = whole(event, "checkpoint"),
                                  .checkpoint = whole(event, "checkpoint")});
    } else if (event.kind == RunEventKind::kStart && is_known) {
      std::find_if(history.attempts.begin(), history.attempts.end(), same_attempt)->resumed = whole(event, "step");
    } else if (event.kind == RunEventKind::kAttemptEnd) {
      const auto at = std::find_if(history.attempts.rbegin(), history.attempts.rend(), same_attempt);
      if (at == history.attempts.rend()) continue;
      at->ended = event.time;
      at->noticed = event.number("noticed", event.time);
      at->checkpoint = whole(event, "checkpoint");
      at->step = whole(event, "step");
      at->cause = {.kind = enum_from_name<CauseKind>(event.string("cause")).value_or(CauseKind::kUnknown),
                   .node = event.string("node"),
                   .world_rank = static_cast<int>(event.number("culprit", -1)),
                   .status = static_cast<int>(event.number("status", 0)),
                   .text = event.text,
                   .step = static_cast<int64_t>(event.number("failed_step", -1))};
    } else if (event.kind == RunEventKind::kExclusion) {
      std::erase_if(history.exclusions, same_node);
      history.exclusions.push_back(
          {.node = event.host, .why = event.text, .since = event.time, .until = event.number("until", 0)});
    } else if (event.kind == RunEventKind::kClearExclusion) {
      std::erase_if(history.exclusions, same_node);
    }
  }
  std::erase_if(history.exclusions, [&](const Exclusion& e) { return e.until <= now; });
  return history;
}

std::vector<RunEvent> stragglers_of(std::span<const RunEvent> events, const std::string& attempt) {
  std::map<int, RunEvent> newest;
  for (const RunEvent& event : events)
    if (event.kind == RunEventKind::kStraggler && event.attempt == attempt) newest[event.world_rank] = event;
  std::vector<RunEvent> stragglers;
  for (const auto& [rank, event] : newest)
    if (event.flag("doctor") && !event.flag("over")) stragglers.push_back(event);
  return stragglers;
}

RunEvent start_event(const PastAttempt& attempt) {
  return {.kind = RunEventKind::kAttemptStart,
          .fields = {{"number", attempt.number}, {"nodes", joined(attempt.nodes)}, {"checkpoint", attempt.from_step}}};
}

RunEvent end_event(const PastAttempt& attempt) {
  RunEvent event{.kind = RunEventKind::kAttemptEnd,
                 .text = attempt.cause.text,
                 .fields = {{"number", attempt.number},
                            {"cause", std::string(enum_name(attempt.cause.kind))},
                            {"status", int64_t{attempt.cause.status}},
                            {"checkpoint", attempt.checkpoint},
                            {"noticed", attempt.noticed},
                            {"step", std::max(attempt.cause.step, attempt.step)}}};
  if (attempt.cause.step >= 0) event.fields["failed_step"] = attempt.cause.step;
  if (!attempt.cause.node.empty()) event.fields["node"] = attempt.cause.node;
  if (attempt.cause.world_rank >= 0) event.fields["culprit"] = int64_t{attempt.cause.world_rank};
  return event;
}

RunEvent exclusion_event(const Exclusion& exclusion) {
  return {.kind = RunEventKind::kExclusion,
          .host = exclusion.node,
          .text = exclusion.why,
          .fields = {{"until", exclusion.until}}};
}

RunEvent diagnosis_event(const std::string& node, double seconds, int64_t step) {
  return {.kind = RunEventKind::kSpan,
          .host = node,
          .fields = {{"what", "diagnosis"}, {"seconds", seconds}, {"step", step}}};
}

RunEvent clear_exclusion_event(const std::string& node) {
  return {.kind = RunEventKind::kClearExclusion, .host = node};
}

}  // namespace tri
