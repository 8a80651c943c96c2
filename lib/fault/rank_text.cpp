#include "lib/fault/rank_text.h"

#include <fmt/format.h>

namespace tri {

std::string ranks_text(const std::vector<int>& ranks, int most) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t next = 0;
  for (int runs = 0; next < ranks.size() && runs < most; ++runs) {
    size_t last = next;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == next + 1) last = next;  // two are listed separately
    text += fmt::format("{}{}", runs == 0 ? "" : ", ", ranks[next]);
    if (last > next) text += fmt::format("-{}", ranks[last]);
    next = last + 1;
  }
  if (next < ranks.size()) text += fmt::format(" and {} more", ranks.size() - next);
  return text;
}

std::string action_text(const RankRecord& record) {
  if (!record.action || record.action_entered == 0) return "";
  const ActionRecord& action = *record.action;
  if (action.kind == ComputeKind::kUpdate || action.kind == ComputeKind::kOther)
    return std::string(enum_name(action.kind));
  std::string text = fmt::format("{} of microbatch {}", enum_name(action.kind), action.microbatch);
  if (action.chunk > 0) text += fmt::format(", chunk {}", action.chunk);
  return text;
}

std::string doing_text(const RankRecord& record) {
  std::string text;
  const bool runs_plans =
      record.phase == RunPhase::kStep || record.phase == RunPhase::kEvaluation || record.phase == RunPhase::kSample;
  if (runs_plans && (record.host_state == HostState::kWorks || record.host_state == HostState::kAwaitsDevice))
    text = action_text(record);
  if (record.phase == RunPhase::kEvaluation || record.phase == RunPhase::kSample)
    text += (text.empty() ? "" : ", ") + std::string(enum_name(record.phase));
  if (record.phase != RunPhase::kSetup && record.phase != RunPhase::kLoad && record.step > 0) {
    if (!runs_plans) text = enum_name(record.phase);
    return text + fmt::format("{}step {}", text.empty() ? "" : ", ", record.step);
  }
  return text.empty() ? std::string(enum_name(record.phase)) : text;
}

std::vector<int> connection_members(const RankRecord& record) {
  std::vector<int> members = record.connection_members;
  if (record.connection_set.size > record.world_size) return members;  // damaged
  for (int i = 0; i < record.connection_set.size; ++i) members.push_back(record.connection_set.rank(i));
  return members;
}

std::string writer_text(const WriterRecord& writer) {
  if (writer.state == WriterState::kAppends) return "writer of metrics.jsonl appends";
  if (writer.state == WriterState::kReads) return "reader of a checkpoint reads";
  return fmt::format("writer of checkpoint {} {}", writer.step, enum_name(writer.state));
}

// Readers and writers continue for a while without the training, and the answer to a signal is no progress.
double silent_seconds(const RankRecord& record) {
  for (auto event = record.events.rbegin(); event != record.events.rend(); ++event)
    if (event->kind == FlightEventKind::kPhase || event->kind == FlightEventKind::kHost ||
        event->kind == FlightEventKind::kAction || event->kind == FlightEventKind::kTransfer)
      return event->seconds;
  return record.last_event_seconds;
}

}  // namespace tri
