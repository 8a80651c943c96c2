// Formats a run's status as text and as JSON.
#include <algorithm>
#include <cmath>
#include <map>

#include "io/base/date.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/fault/rank_text.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/status/run_status.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

constexpr size_t kMaxRows = 32;  // ranks with their own lines
constexpr int kMaxFailures = 8;
constexpr size_t kMostStragglers = 4;
constexpr double kWriterStill = 60;  // seconds without progress after which a checkpoint is mentioned

std::string age(double seconds) {
  return seconds < 1 ? fmt::format("{:.0f} ms", 1e3 * seconds) : format_duration(seconds);
}

// Returns what the compute stream runs or waits to run: "forward of microbatch 3, chunk 1", "before backward of ...".
std::string action_of(const RankRecord& rank) {
  const std::string text = action_text(rank);
  return !text.empty() && rank.action_running < rank.action_entered ? "before " + text : text;
}

std::string process_of(const RankRecord& rank) {
  return fmt::format("{} {}", rank.process, enum_name(rank.process_state));
}

// Without a GPU a rank waits for its own streams, not for a device.
std::string doing_of(const RankRecord& rank) {
  if (rank.host_state == HostState::kAwaitsDevice && rank.gpu.empty()) return "awaits its streams";
  return std::string(enum_name(rank.host_state));
}

// Formats columns as wide as necessary; omits a column without values.
std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (size_t r = 1; r < rows.size(); ++r)
    for (size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], rows[r][c].size());
  for (size_t c = 0; c < widths.size(); ++c)
    if (widths[c] > 0) widths[c] = std::max(widths[c], rows[0][c].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      if (widths[c] > 0) line += fmt::format("{:<{}}  ", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// Prints a host that is not the caller's: containers may share the folder of flight recorders.
std::string table_of_ranks(const std::vector<RankRecord>& ranks, const std::string& host) {
  std::vector<Row> rows{
      {"rank", "place", "host", "GPU", "phase", "step", "activity", "for", "action", "last event", "process"}};
  for (const RankRecord& r : ranks)
    rows.push_back({std::to_string(r.world_rank), r.grid.place(r.world_rank), r.host == host ? "" : r.host, r.gpu,
                    std::string(enum_name(r.phase)), std::to_string(r.step), doing_of(r), age(r.host_seconds),
                    action_of(r), age(r.last_event_seconds), process_of(r)});
  return table(rows);
}

// Ranks in the same state share a line. Small groups, which differ from the rest, come first.
std::string table_of_groups(const std::vector<RankRecord>& ranks) {
  struct Group {
    std::vector<int> ranks;
    double oldest_event = 0;
  };
  std::map<Row, Group> groups;
  for (const RankRecord& r : ranks) {
    Group& group = groups[{std::string(enum_name(r.phase)), std::to_string(r.step), doing_of(r), action_of(r),
                           std::string(enum_name(r.process_state))}];
    group.ranks.push_back(r.world_rank);
    group.oldest_event = std::max(group.oldest_event, r.last_event_seconds);
  }
  std::vector<std::pair<Row, Group>> sorted(groups.begin(), groups.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.ranks.size() < b.second.ranks.size(); });
  std::vector<Row> rows{{"count", "phase", "step", "activity", "action", "process", "oldest event", "ranks"}};
  for (const auto& [key, group] : sorted) {
    Row row{std::to_string(group.ranks.size())};
    row.insert(row.end(), key.begin(), key.end());
    row.push_back(age(group.oldest_event));
    row.push_back(ranks_text(group.ranks));
    rows.push_back(std::move(row));
  }
  return table(rows);
}

std::string who_and_where(const RunStatus& s) {
  std::string text;
  if (!s.attempt.empty()) text += fmt::format("attempt {}{}", s.attempt, s.job.empty() ? "" : ", job " + s.job);
  if (s.world_size == 0) return text.empty() ? "" : text + "\n";
  text += fmt::format("{}{} rank{}", text.empty() ? "" : ": ", s.world_size, s.world_size == 1 ? "" : "s");
  const bool all = static_cast<int>(s.ranks.size()) == s.world_size;
  if (!s.ranks.empty())
    text += fmt::format(", {} on this machine, {}", all ? "all" : std::to_string(s.ranks.size()), s.host);
  if (!s.origin.empty()) text += "; begun " + s.origin;
  return text + "\n";
}

std::string progress_of(const RunStatus& s) {
  std::string text = fmt::format("step {}{}", s.step, s.steps > 0 ? fmt::format(" of {}", s.steps) : "");
  if (!s.rate) return text + "\n";
  const RunRate& rate = *s.rate;
  text += fmt::format(": {} a step, {:.3g} steps/s, {} tok/s (median of the last {})", age(rate.seconds_per_step),
                      1 / rate.seconds_per_step, format_count(rate.tokens_per_s), counted(rate.num_steps, "step"));
  text += rate.loss ? fmt::format(", loss {:.4f}", *rate.loss) : rate.no_targets ? ", no targets" : ", loss not finite";
  if (const std::string imbalance = imbalance_text(rate.imbalance.value_or(0)); !imbalance.empty())
    text += ", " + imbalance;
  const bool alive = s.state == RunState::kRuns;
  if (const auto left = seconds_left(s); alive && left) text += fmt::format(", ETA {}", format_duration(*left));
  return text + fmt::format("; complete {} ago\n", age(rate.age));
}

std::string validation_of(const RunStatus& s) {
  if (!s.validation) return "";
  std::string text;
  const auto add = [&](const std::string& name, double loss) {
    text += fmt::format("{}{} {}", text.empty() ? " " : ", ", name,
                        std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "not finite");
  };
  if (s.validation->loss) add("loss", *s.validation->loss);
  for (const auto& [name, loss] : s.validation->by_name) add(name, loss);
  return fmt::format("validation at step {}:{}\n", s.validation->step, text);
}

std::string experts_of(const RunStatus& s) {
  if (!s.experts) return "";
  return fmt::format("experts at step {}: {}\n", s.experts->step, balance_text(worst_of(s.experts->layers)));
}

// Returns remarks on what the table does not show clearly.
std::string remarks(const RunStatus& s) {
  std::string text;
  int failures = 0;
  const bool alive = s.state == RunState::kRuns || s.state == RunState::kStalled;
  if (s.slowest && alive)
    text += fmt::format("slowest rank: {}, {} for its last step, {:.2f} x the median\n", s.slowest->world_rank,
                        age(s.slowest->seconds), s.slowest->of_median);
  for (size_t i = 0; i < std::min(s.stragglers.size(), kMostStragglers); ++i) text += s.stragglers[i].text + "\n";
  if (s.stragglers.size() > kMostStragglers)
    text += fmt::format("more ranks that are slower than their peers: {}\n", s.stragglers.size() - kMostStragglers);
  if (s.newest_event_age) text += fmt::format("newest event of these ranks: {} ago\n", age(*s.newest_event_age));
  for (const RankRecord& rank : s.ranks) {
    if (rank.writer.state != WriterState::kIdle && rank.writer.seconds > kWriterStill)
      text += rank.writer.state == WriterState::kAppends
                  ? fmt::format("{}: storage has accepted no line of metrics.jsonl for {}\n", to_string_place(rank),
                                age(rank.writer.seconds))
                  : fmt::format("{}: its checkpoint{} ({}) has made no progress for {}\n", to_string_place(rank),
                                rank.writer.step > 0 ? fmt::format(" of step {}", rank.writer.step) : "",
                                enum_name(rank.writer.state), age(rank.writer.seconds));
    if (rank.failure && ++failures <= kMaxFailures)
      text += fmt::format("{} has failed: {}\n", to_string_place(rank), rank.failure->text);
  }
  if (failures > kMaxFailures) text += fmt::format("more ranks that have failed: {}\n", failures - kMaxFailures);
  return text;
}

std::string hang_of(const RunStatus& s) {
  if (s.state != RunState::kStalled) return "";
  if (!s.hang)
    return "the cause is unknown here, since some ranks run elsewhere; the run's watchdog will examine all ranks\n";
  std::string text = s.hang->headline + "\n";
  for (const HangEdge& edge : s.hang->cycle) text += "  " + edge.text + "\n";
  return text;
}

std::string end_of(const RunStatus& s) {
  std::string text;
  if (!s.restart.empty()) text += s.restart + "\n";
  if (s.state == RunState::kFailed || s.state == RunState::kGone) {
    if (s.cause)
      text += fmt::format("first cause, at {}: {}\n", local_date(s.cause->number("began", s.cause->time)),
                          describe(*s.cause));
    else if (!s.end)
      text += "its ranks ended without an error message: they were killed, or their machine ran out of memory\n";
  }
  if (s.end)
    text += fmt::format("ended at {} with status {:.0f}{}\n", local_date(s.end->time), s.end->number("code", 0),
                        s.end->text.empty() ? "" : ": " + s.end->text);
  if (s.state == RunState::kUnknown)
    text += fmt::format(
        "no rank of this run has a flight recorder on this machine, {}: it has ended, or runs elsewhere\n", s.host);
  if (!s.unread_events.empty()) text += fmt::format("starts, failures and ends are unknown: {}\n", s.unread_events);
  // The text of the end event is often the last line of the log too.
  const auto holds = [](const std::string& text, const std::string& part) { return text.find(part) != text.npos; };
  const bool said =
      s.end && !s.end->text.empty() && (holds(s.last_log_line, s.end->text) || holds(s.end->text, s.last_log_line));
  if (s.state != RunState::kRuns && s.restart.empty() && !s.last_log_line.empty() && !said)
    text += fmt::format("last line of log.txt: {}\n", s.last_log_line);
  if (!s.newest_dump.empty())
    text += fmt::format("newest dump: {} (`trireme status {} --hang` prints its report)\n", s.newest_dump, s.run_dir);
  return text;
}

// Explains how to see the ranks that have no flight recorders on this machine.
std::string elsewhere(const RunStatus& s) {
  const int missing = s.world_size - static_cast<int>(s.ranks.size());
  if (missing <= 0 || s.end || s.state == RunState::kEnded || s.state == RunState::kRestarts) return "";
  const std::string ask =
      s.job.empty() ? fmt::format("to see them, run `trireme status {}` there", s.run_dir)
                    : fmt::format("to see all, run `srun --overlap --jobid={} --ntasks-per-node=1 trireme status {}`",
                                  s.job, s.run_dir);
  return fmt::format("{} rank{} on other machines, or ended without an error; {}\n", missing,
                     missing == 1 ? " is" : "s are", ask);
}

// Rounds a finite number; returns null for any other.
Json known(double value) { return std::isfinite(value) ? Json(std::round(value * 1e6) / 1e6) : Json(); }
Json known(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json milliseconds(double seconds) { return seconds > 0 ? known(1e3 * seconds) : Json(); }

Json json_of(const RankRecord& r) {
  Json place;
  for (auto axis = r.grid.axes.rbegin(); axis != r.grid.axes.rend(); ++axis)
    place[axis->name] = r.grid.rank_on(axis->name, r.world_rank);
  return {{"rank", r.world_rank},
          {"place", place},
          {"host", r.host},
          {"gpu", known(r.gpu)},
          {"process", r.process},
          {"process_state", enum_name(r.process_state)},
          {"phase", enum_name(r.phase)},
          {"phase_s", known(r.phase_seconds)},
          {"host_state", enum_name(r.host_state)},
          {"host_state_s", known(r.host_seconds)},
          {"step", r.step},
          {"step_ms", milliseconds(r.step_seconds)},
          {"action", known(action_of(r))},
          {"last_event_age_s", known(r.last_event_seconds)},
          {"failure", r.failure ? Json(r.failure->text) : Json()}};
}

Json json_of(const HangVerdict& hang, const std::vector<RankRecord>& ranks) {
  Json suspects = Json::array();
  for (const HangSuspect& suspect : hang.suspects) {
    const auto rank = std::find_if(ranks.begin(), ranks.end(),
                                   [&](const RankRecord& r) { return r.world_rank == suspect.world_rank; });
    suspects.push_back({{"rank", suspect.world_rank},
                        {"kind", enum_name(suspect.kind)},
                        {"host", rank == ranks.end() ? Json() : Json(rank->host)},
                        {"text", suspect.text}});
  }
  return {{"kind", enum_name(hang.kind)},
          {"headline", hang.headline},
          {"culprits", std::move(suspects)},
          {"waiting", hang.num_waiting}};
}

}  // namespace

std::string_view state_text(RunState state) { return state == RunState::kStalled ? "no progress" : enum_name(state); }

std::string status_text(const RunStatus& status) {
  std::string text =
      fmt::format("{}: {}{}\n", status.run_dir, state_text(status.state),
                  status.state == RunState::kStalled ? fmt::format(" for {}", age(*status.newest_event_age)) : "");
  text += who_and_where(status) + progress_of(status) + validation_of(status) + experts_of(status) + hang_of(status) +
          end_of(status) + remarks(status) + elsewhere(status);
  if (status.ranks.empty()) return text;
  return text + "\n" +
         (status.ranks.size() > kMaxRows ? table_of_groups(status.ranks) : table_of_ranks(status.ranks, status.host));
}

std::string status_json(const RunStatus& status) {
  Json rate, validation, experts, slowest, hang, cause, end, ranks = Json::array(), stragglers = Json::array();
  for (const RunEvent& event : status.stragglers)
    stragglers.push_back({{"rank", event.world_rank},
                          {"host", event.host},
                          {"slowdown", known(event.number("slowdown", 0))},
                          {"text", event.text}});
  if (status.rate)
    rate = {{"step", status.rate->step},
            {"step_ms", milliseconds(status.rate->seconds_per_step)},
            {"tokens_per_s", known(status.rate->tokens_per_s)},
            {"loss", status.rate->loss ? Json(*status.rate->loss) : Json()},
            {"imbalance", status.rate->imbalance ? Json(*status.rate->imbalance) : Json()},
            {"age_s", known(status.rate->age)}};
  if (status.validation) {
    Json by_name = Json::object();
    for (const auto& [name, loss] : status.validation->by_name) by_name[name] = known(loss);
    validation = {{"step", status.validation->step},
                  {"loss", known(status.validation->loss.value_or(kUnknown))},
                  {"by_name", by_name}};
  }
  if (status.experts) {
    const WorstBalance worst = worst_of(status.experts->layers);
    experts = {{"step", status.experts->step},
               {"max_load", known(worst.fullest.max_load)},
               {"dead", worst.dead},
               {"entropy", known(worst.least_even.entropy)}};
  }
  if (status.slowest)
    slowest = {{"rank", status.slowest->world_rank},
               {"step_ms", milliseconds(status.slowest->seconds)},
               {"of_median", known(status.slowest->of_median)}};
  if (status.hang) hang = json_of(*status.hang, status.ranks);
  if (status.cause)
    cause = {{"time", status.cause->number("began", status.cause->time)},
             {"kind", enum_name(status.cause->kind)},
             {"rank", status.cause->world_rank},
             {"host", status.cause->host},
             {"text", status.cause->text}};
  if (status.end)
    end = {{"time", status.end->time},
           {"code", static_cast<int>(status.end->number("code", 0))},
           {"text", known(status.end->text)}};
  for (const RankRecord& rank : status.ranks) ranks.push_back(json_of(rank));
  const Json object = {{"run_dir", status.run_dir},
                       {"host", status.host},
                       {"attempt", known(status.attempt)},
                       {"job", known(status.job)},
                       {"state", enum_name(status.state)},
                       {"restart", known(status.restart)},
                       {"origin", known(status.origin)},
                       {"world_size", status.world_size > 0 ? Json(status.world_size) : Json()},
                       {"step", status.step},
                       {"steps", status.steps > 0 ? Json(status.steps) : Json()},
                       {"newest_event_age_s", status.newest_event_age ? known(*status.newest_event_age) : Json()},
                       {"rate", rate},
                       {"validation", validation},
                       {"experts", experts},
                       {"slowest", slowest},
                       {"stragglers", stragglers},
                       {"hang", hang},
                       {"cause", cause},
                       {"end", end},
                       {"newest_dump", known(status.newest_dump)},
                       {"last_log_line", known(status.last_log_line)},
                       {"ranks", ranks}};
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tri
