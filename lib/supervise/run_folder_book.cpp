#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"
#include "lib/fault/dump_folder.h"
#include "lib/supervise/driver.h"

namespace tri {
namespace {

constexpr std::chrono::milliseconds kPatience{2000};  // with storage that hangs

// None: it can't be read now.
std::optional<std::vector<RunEvent>> events_of(const std::string& run_dir) {
  using Events = std::optional<std::vector<RunEvent>>;
  return within(
      kPatience,
      [path = run_dir + "/events.jsonl"] {
        auto events = read_events(path);
        return events ? Events(std::move(events).value()) : Events();
      },
      Events());
}

// The hosts that the newest dump of this attempt calls suspects.
std::vector<std::string> suspects_of(const std::string& run_dir, const std::string& attempt) {
  const auto dumps = list_dumps(run_dir);
  for (auto dump = dumps.rbegin(); dump != dumps.rend(); ++dump) {
    std::ifstream in(*dump + "/report.json");
    const auto report = nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
    if (!report.is_object() || report.value("attempt", "") != attempt) continue;
    std::vector<std::string> hosts;
    for (const auto& host : report.value("hosts", nlohmann::json::array()))
      if (host.is_string()) hosts.push_back(host);
    return hosts;
  }
  return {};
}

}  // namespace

RunFolderBook::RunFolderBook(std::string run_dir, std::string checkpoint_dir, std::string job)
    : run_dir_(std::move(run_dir)), checkpoint_dir_(std::move(checkpoint_dir)), job_(std::move(job)) {}

// While storage is away, what was known stays known: a node that is left out must not come back that way.
RunHistory RunFolderBook::history(double now) {
  if (auto read = events_of(run_dir_)) events_ = std::move(*read);
  std::vector<RunEvent> all = events_;
  for (const RunEvent& event : unwritten_) {
    const auto earlier =
        std::find_if(all.rbegin(), all.rend(), [&](const RunEvent& e) { return e.time <= event.time; });
    all.insert(earlier.base(), event);
  }
  return history_from(all, now);
}

void RunFolderBook::append(RunEvent event, const std::string& attempt) {
  if (event.host.empty()) event.host = host_name();
  event.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  event.attempt = attempt;
  event.job = job_;
  const EventBook book(
      {.path = run_dir_ + "/events.jsonl", .attempt = attempt, .job = job_, .world_rank = -1, .host = host_name()});
  if (book.append(event)) {
    events_.push_back(std::move(event));
    return;
  }
  log_warn("supervise: {}/events.jsonl could not be written", run_dir_);
  unwritten_.push_back(std::move(event));
}

int64_t RunFolderBook::newest_checkpoint() {
  checkpoint_ = within(
      kPatience,
      [dir = checkpoint_dir_, known = checkpoint_] {
        const auto candidates = checkpoint_candidates(dir);
        if (!candidates) return known;
        for (const CheckpointCandidate& candidate : candidates.value())
          if (candidate.unfinished.empty()) return candidate.step;
        return int64_t{0};
      },
      int64_t{checkpoint_});
  return checkpoint_;
}

bool RunFolderBook::has_begun(const std::string& attempt) {
  const auto events = events_of(run_dir_);
  return !events || std::any_of(events->begin(), events->end(), [&](const RunEvent& event) {
    return event.kind == RunEventKind::kBegin && event.attempt == attempt;
  });
}

std::optional<RunEvent> RunFolderBook::first_cause(const std::string& attempt) {
  const auto events = events_of(run_dir_);
  return events ? tri::first_cause(*events, attempt) : std::nullopt;
}

std::vector<RunEvent> RunFolderBook::stragglers(const std::string& attempt) {
  return stragglers_of(events_of(run_dir_).value_or(std::vector<RunEvent>()), attempt);
}

std::vector<std::string> RunFolderBook::suspects(const std::string& attempt) {
  return within(
      kPatience, [run_dir = run_dir_, attempt] { return suspects_of(run_dir, attempt); }, std::vector<std::string>());
}

// What can't be read, or understood, changes nothing.
Thresholds RunFolderBook::thresholds() {
  using Answer = std::optional<Result<Thresholds>>;
  const Answer read = within(
      kPatience, [run_dir = run_dir_] { return Answer(read_thresholds(run_dir)); }, Answer());
  if (!read) return known_;
  if (!*read) {
    if (read->error().message != complaint_) log_warn("{}; the values before hold on", read->error().message);
    complaint_ = read->error().message;
    return known_;
  }
  complaint_.clear();
  return known_ = read->value();
}

}  // namespace tri
