#include "lib/observe/status/run_status.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/folder_entries.h"
#include "io/base/format.h"
#include "io/base/host.h"
#include "io/base/median.h"
#include "io/base/text_file.h"
#include "io/checkpoint/run_lock.h"
#include "lib/fault/dump_folder.h"
#include "lib/fault/rank_text.h"
#include "lib/observe/metrics/metrics_reader.h"
#include "lib/observe/status/run_attempts.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRateSteps = 20;     // the rate is that of their median
constexpr double kStillSeconds = 10;  // a run makes no progress if it had no event for at least so long, and
constexpr double kStillSteps = 3;     // ... for at least so many steps, and
constexpr std::chrono::milliseconds kSecondLook{500};  // ... a second look shows no change
constexpr int kLogLines = 30;
constexpr int64_t kTailBytes = 262144;         // of files that only grow; holds an experts line and the next 100 steps
constexpr int64_t kEvaluationBytes = 4 << 20;  // holds an evaluation and about the next 10,000 steps

// Returns the complete lines in the last `most` bytes of a file, or none if it can't be read.
std::vector<std::string> last_lines(const std::string& path, int64_t most = kTailBytes) {
  const auto file = InputFile::open(path);
  if (!file) return {};
  const int64_t bytes = std::min(most, file.value().bytes()), begin = file.value().bytes() - bytes;
  std::string tail(static_cast<size_t>(bytes), '\0');
  if (!file.value().read(tail.data(), bytes, begin)) return {};
  std::vector<std::string> lines;
  size_t at = begin == 0 ? 0 : tail.find('\n') + 1;  // the first line is incomplete
  for (size_t end; (end = tail.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(tail.substr(at, end - at));
  return lines;
}

// `now`: by the clock of the process that wrote the lines.
std::optional<RunRate> rate_of(const std::vector<std::string>& lines, double now) {
  RunRate rate{.no_targets = true};
  std::vector<double> seconds, imbalances;
  double tokens = 0, time = 0;
  for (auto line = lines.rbegin(); line != lines.rend() && seconds.size() < kRateSteps; ++line) {
    const MetricsLine read = read_metrics_line(*line);
    if (std::holds_alternative<RestartRecord>(read)) break;  // earlier steps belong to another attempt
    const auto* step = std::get_if<StepRecord>(&read);
    if (step == nullptr || !(step->step_ms > 0)) continue;
    if (seconds.empty()) {
      rate.step = step->step;
      rate.tokens = step->tokens;
      time = step->time;
    }
    if (rate.no_targets && !step->no_targets) {
      rate.no_targets = false;
      if (std::isfinite(step->loss)) rate.loss = step->loss;
    }
    seconds.push_back(step->step_ms / 1000);
    if (std::isfinite(step->imbalance)) imbalances.push_back(step->imbalance);
    if (std::isfinite(step->tokens_per_s)) tokens += step->tokens_per_s * step->step_ms / 1000;
  }
  if (seconds.empty()) return std::nullopt;
  rate.num_steps = static_cast<int64_t>(seconds.size());
  rate.seconds_per_step = median(seconds);
  if (!imbalances.empty()) rate.imbalance = median(imbalances);
  rate.tokens_per_s = tokens / static_cast<double>(seconds.size()) / rate.seconds_per_step;
  rate.age = std::max(0.0, now - time);
  return rate;
}

// A restart undoes the evaluations after the step from which it continues.
std::optional<RunValidation> validation_of(const std::vector<std::string>& lines) {
  std::optional<RunValidation> found;
  int64_t last_step = std::numeric_limits<int64_t>::max();
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line->starts_with("{\"restart\":")) {
      const MetricsLine read = read_metrics_line(*line);
      if (const auto* restart = std::get_if<RestartRecord>(&read)) last_step = std::min(last_step, restart->step);
    }
    if (line->find("\"validation") == line->npos) {
      if (found) break;  // the lines of an evaluation follow each other
      continue;
    }
    const MetricsLine read = read_metrics_line(*line);
    const auto* whole = std::get_if<EvaluationRecord>(&read);
    const auto* named = std::get_if<NamedEvaluationRecord>(&read);
    if (whole == nullptr && named == nullptr) continue;
    const int64_t step = whole != nullptr ? whole->step : named->step;
    if (step > last_step) continue;
    if (found && found->step != step) break;
    if (!found) found = {.step = step, .loss = {}, .by_name = {}};
    if (whole != nullptr) found->loss = whole->loss;
    if (named != nullptr) found->by_name = named->losses;
  }
  return found;
}

// Returns the newest record of the newest attempt.
std::optional<ExpertRecord> experts_of(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (!line->starts_with("{\"experts\":") && !line->starts_with("{\"restart\":")) continue;
    MetricsLine read = read_metrics_line(*line);
    if (std::holds_alternative<RestartRecord>(read)) break;
    if (auto* record = std::get_if<ExpertRecord>(&read)) return std::move(*record);
  }
  return std::nullopt;
}

// Returns the flight recorders of all attempts of the run on this machine.
std::vector<RankRecord> records_of(const std::string& run_dir) {
  std::vector<RankRecord> records;
  for (const std::string& path : list_flight_records()) {
    auto record = read_flight_record(path);
    if (!record) continue;  // belongs to another user or version
    std::error_code absent;
    if (fs::weakly_canonical(record.value().run_dir, absent) != run_dir) continue;
    record.value().process_state = process_state_of(record.value());
    records.push_back(std::move(record).value());
  }
  return records;
}

std::optional<SlowRank> slowest_of(const std::vector<RankRecord>& ranks) {
  std::vector<double> seconds;
  SlowRank slowest;
  for (const RankRecord& rank : ranks) {
    if (rank.step_seconds <= 0) continue;
    seconds.push_back(rank.step_seconds);
    if (rank.step_seconds > slowest.seconds)
      slowest = {.world_rank = rank.world_rank, .seconds = rank.step_seconds, .of_median = 0};
  }
  if (seconds.size() < 2) return std::nullopt;
  slowest.of_median = slowest.seconds / median(seconds);
  return slowest;
}

// Returns a failure that its rank recorded in its flight recorder because the event log could not be written.
RunEvent failure_event(const RankRecord& rank) {
  return {
      .time = static_cast<double>(rank.failure->realtime) * 1e-9,
      .attempt = rank.attempt,
      .job = rank.job,
      .kind = RunEventKind::kFailure,
      .world_rank = rank.world_rank,
      .host = rank.host,
      .text = rank.failure->text,
      .fields = {{"code", int64_t{rank.failure->code}}, {"consequence", rank.failure->consequence}, {"gpu", rank.gpu}}};
}

// Sets cause, end, size and steps from the run's events and from failures that only flight recorders contain.
void take_events(std::vector<RunEvent> events, RunStatus& status) {
  std::erase_if(events, [&](const RunEvent& event) { return event.attempt != status.attempt; });
  std::map<int, RunEvent> stragglers;
  for (const RunEvent& event : events) {
    if (event.kind == RunEventKind::kStraggler) stragglers.insert_or_assign(event.world_rank, event);
    if (event.kind == RunEventKind::kStraggler && event.flag("over")) stragglers.erase(event.world_rank);
    if (status.job.empty()) status.job = event.job;
    if (event.kind == RunEventKind::kEnd) status.end = event;
    if (event.kind != RunEventKind::kStart) continue;
    status.world_size = static_cast<int>(event.number("ranks", 0));
    status.step = static_cast<int64_t>(event.number("step", 0));
    status.steps = static_cast<int64_t>(event.number("steps", 0));
    status.tokens = static_cast<int64_t>(event.number("tokens", 0));
    status.origin = describe_origin(event);
  }
  for (const RankRecord& rank : status.ranks) {
    const auto known = [&](const RunEvent& event) {
      return event.kind == RunEventKind::kFailure && event.world_rank == rank.world_rank;
    };
    if (rank.failure && std::none_of(events.begin(), events.end(), known)) events.push_back(failure_event(rank));
  }
  for (const auto& [rank, event] : stragglers) status.stragglers.push_back(event);
  status.cause = first_cause(events, status.attempt);
  if (status.cause || status.end) return;
  // Ranks record nothing if they fail before they hold the run folder, or if their node loses power.
  const auto ended = std::find_if(events.begin(), events.end(), is_drivers_failure);
  if (ended == events.end()) return;
  status.cause = *ended;
  status.cause->text = fmt::format("{}: {}", ended->string("cause"), ended->text);
}

// Whether a rank has made progress between two reads of its record. Some progress leaves no event.
bool has_moved(const RankRecord& before, const RankRecord& after) {
  const auto completed = [](uint32_t sum, const ChannelRecord& channel) { return sum + channel.completed; };
  const auto marks = [&](const RankRecord& r) {
    return std::tuple(r.progress, r.actions_enqueued, r.action_running, r.writer.progress,
                      std::accumulate(r.channels.begin(), r.channels.end(), 0u, completed));
  };
  return before.world_rank == after.world_rank && marks(before) != marks(after);
}

bool any_moves(const RunStatus& status) {
  std::this_thread::sleep_for(kSecondLook);
  for (const RankRecord& later : records_of(status.run_dir)) {
    const auto moves = [&](const RankRecord& rank) { return has_moved(rank, later); };
    if (later.attempt == status.attempt && std::any_of(status.ranks.begin(), status.ranks.end(), moves)) return true;
  }
  return false;
}

bool lives(const RankRecord& rank) { return is_there(rank.process_state); }

RunState state_of(const RunStatus& status) {
  if (std::any_of(status.ranks.begin(), status.ranks.end(), lives)) {
    const double step = std::transform_reduce(
        status.ranks.begin(), status.ranks.end(), 0.0, [](double a, double b) { return std::max(a, b); },
        [](const RankRecord& rank) { return rank.step_seconds; });
    const bool still =
        status.newest_event_age && *status.newest_event_age > std::max(kStillSeconds, kStillSteps * step);
    return still && !any_moves(status) ? RunState::kStalled : RunState::kRuns;
  }
  if (status.cause) return RunState::kFailed;
  if (status.end) {
    const int code = static_cast<int>(status.end->number("code", 0));
    return code == 0 || code == static_cast<int>(ExitCode::kDrained) ? RunState::kEnded : RunState::kFailed;
  }
  const bool gone = std::any_of(status.ranks.begin(), status.ranks.end(),
                                [](const RankRecord& rank) { return rank.process_state == ProcessState::kGone; });
  return gone ? RunState::kGone : RunState::kUnknown;
}

// Returns the attempt that began last: by file order for events, by the monotonic clock for flight recorders. Names of
// attempts begin with dates, which are wrong if the clock was set back. So names decide only if an attempt has a flight
// recorder but no event.
std::string newest_attempt(const std::vector<RankRecord>& records, const std::vector<RunEvent>& events) {
  std::vector<std::string> begun;
  for (const RunEvent& event : events)
    if (!event.attempt.empty() && std::find(begun.begin(), begun.end(), event.attempt) == begun.end())
      begun.push_back(event.attempt);
  const std::string of_events = begun.empty() ? "" : begun.back();
  if (records.empty()) return of_events;
  // Not by age: a pause between two reads makes the second recorder look older.
  const RankRecord& record = *std::max_element(
      records.begin(), records.end(), [](const RankRecord& a, const RankRecord& b) { return a.created < b.created; });
  if (std::find(begun.begin(), begun.end(), record.attempt) != begun.end()) return of_events;
  return std::max(record.attempt, of_events);
}

// Finds the rank that blocks a run without progress. Ranks without a record count as gone, so all must be on this
// machine.
std::optional<HangVerdict> locate(const RunStatus& status) {
  if (status.state != RunState::kStalled || static_cast<int>(status.ranks.size()) != status.world_size)
    return std::nullopt;
  std::array<int, kNumRunPhases> in_phase{};
  for (const RankRecord& rank : status.ranks) ++in_phase[static_cast<size_t>(rank.phase) % kNumRunPhases];
  const auto most = std::max_element(in_phase.begin(), in_phase.end()) - in_phase.begin();
  return locate_hang(status.ranks, {.phase = static_cast<RunPhase>(most), .seconds = *status.newest_event_age});
}

// Returns the folder of the run's newest dump with a report, or "".
std::string newest_dump_of(const std::string& run_dir) {
  std::error_code absent;
  const auto dumps = list_dumps(run_dir);
  for (auto dump = dumps.rbegin(); dump != dumps.rend(); ++dump)
    if (fs::exists(*dump + "/report.json", absent)) return *dump;
  return "";
}

bool is_run(const std::string& run_dir) {
  std::error_code absent;
  for (const char* name : {"config.yaml", "resolved.yaml", "metrics.jsonl", "events.jsonl", "log.txt", "run.lock"})
    if (fs::exists(run_dir + "/" + name, absent)) return true;
  return false;
}

// Returns the name of the newest Slurm log in a run's folder, such as "slurm-17.log", or "".
std::string newest_job_log(const std::string& run_dir) {
  std::error_code absent;
  std::string newest;
  fs::file_time_type written = fs::file_time_type::min();
  for (const auto& entry : entries_of(run_dir, absent)) {
    const std::string name = entry.path().filename().string();
    const fs::file_time_type time = entry.last_write_time(absent);
    if (!name.starts_with("slurm-") || !name.ends_with(".log") || absent || time < written) continue;
    newest = name;
    written = time;
  }
  return newest;
}

Result<std::string> canonical_run(const std::string& run_dir) {
  std::error_code problem;
  const fs::path path = fs::canonical(run_dir, problem);
  if (problem) return usage_error("{}: {}; give the folder of a run (run.dir)", run_dir, problem.message());
  return path.string();
}

// Between two attempts of a supervised run: what ended the last one, and what its supervisor does. "": the run is not
// between attempts. `events`: of all attempts.
std::string restart_of(const RunStatus& status, const std::vector<RunEvent>& events, double now) {
  if (std::any_of(status.ranks.begin(), status.ranks.end(), lives)) return "";
  const RunEvent *launched = nullptr, *ended = nullptr, *failed = nullptr, *decided = nullptr;
  bool begun = false;
  for (const RunEvent& event : events) {
    if (event.kind == RunEventKind::kAttemptStart) launched = &event, decided = nullptr, begun = false;
    if (event.kind == RunEventKind::kAttemptEnd) ended = &event;
    if (event.kind == RunEventKind::kFailure && event.attempt == status.attempt) failed = &event;
    if (event.kind == RunEventKind::kDecision && event.attempt == status.attempt) decided = &event;
    begun |= event.kind == RunEventKind::kBegin && launched != nullptr && event.attempt == launched->attempt;
  }
  if (launched == nullptr) return "";  // it is not supervised
  const bool over = (ended != nullptr && ended->attempt == launched->attempt) || failed != nullptr;
  if (begun && !over) return "";  // its ranks run on other machines
  if (const auto driver = holder_of_lock(status.run_dir + "/supervise.lock"); !driver || !driver.value()) return "";
  std::string text;
  if (over && failed != nullptr && (ended == nullptr || ended->attempt != launched->attempt))
    text = fmt::format("attempt {:.0f} failed: {}; the supervisor ends its other ranks", launched->number("number", 0),
                       describe(*failed));
  else if (ended != nullptr)
    text = fmt::format("attempt {:.0f} ended: {}: {}", ended->number("number", 0), ended->string("cause"), ended->text);
  if (decided != nullptr) text += (text.empty() ? "" : "; ") + describe_decision(*decided);
  if (!over)
    text += fmt::format("{}attempt {:.0f} was launched {} ago, and its ranks are starting", text.empty() ? "" : "; ",
                        launched->number("number", 0), format_duration(std::max(0.0, now - launched->time)));
  return text;
}

}  // namespace

std::optional<double> seconds_left(const RunStatus& s) {
  if (!s.rate || s.steps <= s.step) return std::nullopt;
  if (s.tokens > 0 && s.rate->tokens_per_s > 0)
    return static_cast<double>(std::max<int64_t>(0, s.tokens - s.rate->tokens)) / s.rate->tokens_per_s;
  return static_cast<double>(s.steps - s.step) * s.rate->seconds_per_step;
}

Result<RunStatus> read_run_status(const std::string& run_dir, EvaluationSearch search) {
  auto path = canonical_run(run_dir);
  if (!path) return path.error();
  RunStatus status{.run_dir = path.value(), .host = host_name()};
  std::vector<RankRecord> records = records_of(status.run_dir);
  if (records.empty() && !is_run(status.run_dir)) {
    if (const std::string log = newest_job_log(status.run_dir); !log.empty())
      return usage_error(
          "{}: no start of this run has read its config yet, so the folder has neither config.yaml nor log.txt; the "
          "messages of its job are in {}/{}",
          run_dir, run_dir, log);
    return usage_error("{}: not the folder of a run, since it has neither config.yaml nor log.txt", run_dir);
  }

  auto events = read_events(status.run_dir + "/events.jsonl");
  if (!events && events.error().os_error != ENOENT) status.unread_events = events.error().message;
  const std::vector<RunEvent> known = events ? std::move(events).value() : std::vector<RunEvent>();
  status.attempt = newest_attempt(records, known);
  std::erase_if(records, [&](const RankRecord& record) { return record.attempt != status.attempt; });
  std::sort(records.begin(), records.end(),
            [](const RankRecord& a, const RankRecord& b) { return a.world_rank < b.world_rank; });
  status.ranks = std::move(records);

  take_events(known, status);
  double now = wall_seconds();
  for (const RankRecord& rank : status.ranks)
    if (rank.world_rank == 0 && lives(rank)) now = rank.taken;  // the clock may have been set since the start
  const std::string metrics = status.run_dir + "/metrics.jsonl";
  const std::vector<std::string> lines = last_lines(metrics);
  status.rate = rate_of(lines, now);
  status.validation = validation_of(lines);
  if (!status.validation && search == EvaluationSearch::kFarBack)
    status.validation = validation_of(last_lines(metrics, kEvaluationBytes));
  status.experts = experts_of(lines);
  if (status.rate) status.step = status.rate->step;
  for (const RankRecord& rank : status.ranks) {
    status.step = std::max(status.step, rank.step - 1);
    status.world_size = rank.world_size;
    status.job = rank.job;
    status.steps = std::max(status.steps, rank.steps);
    status.newest_event_age = std::min(silent_seconds(rank), status.newest_event_age.value_or(INFINITY));
  }
  status.slowest = slowest_of(status.ranks);
  status.state = state_of(status);
  if (status.restart = restart_of(status, known, now); !status.restart.empty()) status.state = RunState::kRestarts;
  status.hang = locate(status);
  const bool alive = status.state == RunState::kRuns || status.state == RunState::kStalled;
  if (alive && status.cause && status.cause->kind == RunEventKind::kHang) status.cause.reset();  // the run may recover
  status.newest_dump = newest_dump_of(status.run_dir);
  if (auto log = last_lines(status.run_dir + "/log.txt"); !log.empty()) {
    status.last_log_line = log.back();
    if (log.size() > kLogLines) log.erase(log.begin(), log.end() - kLogLines);
    status.last_log_lines = std::move(log);
  }
  return status;
}

Result<HangDump> read_hang_dump(const std::string& run_dir, const std::string& dump) {
  auto run = canonical_run(run_dir);
  if (!run) return run.error();
  HangDump found;
  if (dump.empty()) {
    found.folder = newest_dump_of(run.value());
    if (found.folder.empty()) return file_error("{}: this run has no dump of a hang", run.value());
  } else {
    std::error_code absent;
    const std::string named = run.value() + "/hang/" + dump;
    found.folder = fs::is_directory(named, absent) ? named : dump;
    if (!fs::is_directory(found.folder, absent))
      return usage_error("{}: no such dump; the dumps of this run are in {}/hang", dump, run.value());
  }
  auto text = read_text(found.folder + "/report.txt");
  if (!text) return text.error();
  auto json = read_text(found.folder + "/report.json");
  if (!json) return json.error();
  found.text = std::move(text).value();
  found.json = std::move(json).value();
  return found;
}

}  // namespace tri
