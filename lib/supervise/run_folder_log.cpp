#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "io/base/clock.h"
#include "io/base/host.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/text_file.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"
#include "lib/fault/dump_folder.h"
#include "lib/supervise/driver.h"

namespace tri {
namespace {

constexpr std::chrono::milliseconds kTimeout{2000};  // for storage

// Returns none if the events can't be read now.
std::optional<std::vector<RunEvent>> events_of(const std::string& run_dir) {
  using Events = std::optional<std::vector<RunEvent>>;
  const std::string path = run_dir + "/events.jsonl";
  return within(
      path, kTimeout,
      [path] {
        auto events = read_events(path);
        return events ? Events(std::move(events).value()) : Events();
      },
      Events());
}

// Returns the hosts that the newest dump of this attempt reports as suspects.
std::vector<std::string> suspects_of(const std::string& run_dir, const std::string& attempt) {
  const auto dumps = list_dumps(run_dir);
  for (auto dump = dumps.rbegin(); dump != dumps.rend(); ++dump) {
    const auto report = try_parse_json<nlohmann::json>(text_of(*dump + "/report.json"));
    if (!report.is_object() || report.value("attempt", "") != attempt) continue;
    std::vector<std::string> hosts;
    for (const auto& host : report.value("hosts", nlohmann::json::array()))
      if (host.is_string()) hosts.push_back(host);
    return hosts;
  }
  return {};
}

}  // namespace

RunFolderLog::RunFolderLog(std::string run_dir, std::string checkpoint_dir, std::string job,
                           std::chrono::milliseconds checkpoint_timeout)
    : run_dir_(std::move(run_dir)),
      checkpoint_dir_(std::move(checkpoint_dir)),
      checkpoint_timeout_(checkpoint_timeout),
      event_log_({.path = run_dir_ + "/events.jsonl",
                  .attempt = "",
                  .job = std::move(job),
                  .world_rank = -1,
                  .host = host_name(),
                  .gpu = ""}) {}

// If storage does not respond, the last known state is used, so that an excluded node stays excluded.
RunHistory RunFolderLog::history(double wall) {
  const bool none_queued = event_log_.flush(std::chrono::milliseconds(0));  // flush first, so that the read finds these
                                                                            // events
  auto read = events_of(run_dir_);
  if (read) events_ = std::move(*read);
  // Removes the events that storage has written in the meantime.
  std::erase_if(unwritten_, [&](const Unwritten& unwritten) {
    return std::any_of(events_.begin(), events_.end(),
                       [line = to_json(unwritten.event)](const RunEvent& e) { return to_json(e) == line; });
  });
  // Storage has rejected the other events: append them again. The next call finds them in the file.
  if (read && none_queued)
    for (const auto& [after, event] : unwritten_)
      if (!event_log_.of_attempt(event.attempt).append(event)) break;
  std::vector<RunEvent> all = events_;
  // Orders events by date, but never before the events known when they were made: the clock may have been set back.
  size_t least = 0;
  for (const auto& [after, event] : unwritten_) {
    const auto earlier =
        std::find_if(all.rbegin(), all.rend(), [time = event.time](const RunEvent& e) { return e.time <= time; });
    const auto by_date = static_cast<size_t>(earlier.base() - all.begin());
    const size_t place = std::min(std::max({by_date, after, least}), all.size());
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(place), event);
    least = place + 1;
  }
  return history_from(all, wall);
}

double RunFolderLog::date_for(const std::string& attempt) {
  if (attempt.empty()) return wall_seconds();
  if (attempt != dated_attempt_) date_offset_ = wall_seconds() - monotonic_seconds();
  dated_attempt_ = attempt;
  return date_offset_ + monotonic_seconds();
}

void RunFolderLog::append(RunEvent event, const std::string& attempt) {
  if (event.host.empty()) event.host = host_name();
  event.time = date_for(attempt);
  event.attempt = attempt;
  event.job = event_log_.writer().job;
  if (event_log_.of_attempt(attempt).append(event)) {
    events_.push_back(std::move(event));
    return;
  }
  if (unwritten_.empty())
    log_warn("supervise: {}/events.jsonl cannot be written; the driver keeps its events and writes them later",
             run_dir_);
  unwritten_.push_back({events_.size(), std::move(event)});
}

// A checkpoint counts only if the ranks can load it, so its manifest and the sizes of its files are checked. A result
// that arrives too late is stored for the next call.
int64_t RunFolderLog::newest_checkpoint() {
  const auto find = [dir = checkpoint_dir_, newest = checkpoint_] {
    const Retry once{.tries = 1};
    const auto candidates = checkpoint_candidates(dir, once);
    if (!candidates) return false;
    for (const CheckpointCandidate& candidate : candidates.value()) {
      if (!candidate.unfinished.empty()) continue;
      if (candidate.step == *newest) return true;  // checked before
      const auto opened = open_candidate(candidate, once);
      if (opened) {
        *newest = candidate.step;
        return true;
      }
      const int why = opened.error().os_error;
      if (why != 0 && why != ENOENT) return false;  // storage does not answer
    }
    *newest = 0;
    return true;
  };
  within(checkpoint_dir_, checkpoint_timeout_, find, false);
  return *checkpoint_;
}

int64_t RunFolderLog::reached_step(const std::string& attempt) {
  int64_t step = 0;
  for (const RunEvent& event : events_of(run_dir_).value_or(std::vector<RunEvent>()))
    if (event.attempt == attempt) step = std::max(step, static_cast<int64_t>(event.number("step", 0)));
  return step;
}

bool RunFolderLog::has_begun(const std::string& attempt) {
  const auto events = events_of(run_dir_);
  return !events || std::any_of(events->begin(), events->end(), [&](const RunEvent& event) {
    return event.kind == RunEventKind::kBegin && event.attempt == attempt;
  });
}

std::optional<RunEvent> RunFolderLog::first_cause(const std::string& attempt) {
  const auto events = events_of(run_dir_);
  return events ? tri::first_cause(*events, attempt) : std::nullopt;
}

std::vector<RunEvent> RunFolderLog::stragglers(const std::string& attempt) {
  return stragglers_of(events_of(run_dir_).value_or(std::vector<RunEvent>()), attempt);
}

std::vector<std::string> RunFolderLog::suspects(const std::string& attempt) {
  return within(
      run_dir_ + "/hang", kTimeout, [run_dir = run_dir_, attempt] { return suspects_of(run_dir, attempt); },
      std::vector<std::string>());
}

// A file that can't be read or parsed leaves the thresholds unchanged.
Thresholds RunFolderLog::thresholds() {
  using Answer = std::optional<Result<Thresholds>>;
  const Answer read = within(
      run_dir_ + "/supervise.conf", kTimeout, [run_dir = run_dir_] { return Answer(read_thresholds(run_dir)); },
      Answer());
  if (!read) return known_;
  if (!*read) {
    if (read->error().message != complaint_)
      log_warn("{}; the previous thresholds stay in effect", read->error().message);
    complaint_ = read->error().message;
    return known_;
  }
  complaint_.clear();
  return known_ = read->value();
}

}  // namespace tri
