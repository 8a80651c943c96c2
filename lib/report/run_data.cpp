#include "lib/report/run_data.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/median.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBefore = "before.", kAfter = "after.";
constexpr size_t kRecentSteps = 100;
constexpr int64_t kLogBytes = 4'000'000;  // of log.txt's end, where samples are looked for
constexpr size_t kSampleBytes = 2000;
constexpr int kMostSamples = 8;

bool is_run(const std::string& dir) {
  std::error_code absent;
  for (const char* name : {"config.yaml", "resolved.yaml", "metrics.jsonl", "events.jsonl", "log.txt"})
    if (fs::exists(dir + "/" + name, absent)) return true;
  return false;
}

// Returns the newest step that was complete at `time`.
int64_t step_at(const RunMetrics& metrics, double time) {
  const auto after = std::partition_point(metrics.steps.begin(), metrics.steps.end(),
                                          [&](const StepRecord& step) { return step.time <= time; });
  int64_t step = after == metrics.steps.begin() ? 0 : std::prev(after)->step;
  double newest = after == metrics.steps.begin() ? 0 : std::prev(after)->time;
  for (const StepRecord& lost : metrics.lost)
    if (lost.time <= time && lost.time > newest) newest = lost.time, step = lost.step;
  return step;
}

std::vector<ConfigChange> changes_of(const std::vector<RunEvent>& events) {
  std::vector<ConfigChange> changes;
  int number = 0;
  for (const RunEvent& event : events) {
    if (event.kind != RunEventKind::kStart) continue;
    const auto add = [&](const std::string& name, const std::string& before, const std::string& after) {
      changes.push_back({.time = event.time,
                         .start = number,
                         .step = static_cast<int64_t>(event.number("step", 0)),
                         .name = name,
                         .before = before,
                         .after = after});
    };
    for (const auto& [field, value] : event.fields) {
      // Start events of earlier versions contain "changed.NAME": "BEFORE -> AFTER".
      constexpr std::string_view kChanged = "changed.", kArrow = " -> ";
      if (const std::string name = field.substr(std::min(field.size(), kBefore.size())); field.starts_with(kBefore))
        add(name, event.string(field), event.string(std::string(kAfter) + name));
      const std::string text = event.string(field);
      if (const size_t arrow = text.find(kArrow); field.starts_with(kChanged) && arrow != text.npos)
        add(field.substr(kChanged.size()), text.substr(0, arrow), text.substr(arrow + kArrow.size()));
    }
    ++number;
  }
  return changes;
}

std::vector<StragglerRecord> stragglers_of(const std::vector<RunEvent>& events) {
  std::vector<StragglerRecord> records;
  for (const RunEvent& event : events)
    if (event.kind == RunEventKind::kStraggler)
      records.push_back({.time = event.time,
                         .step = static_cast<int64_t>(event.number("step", 0)),
                         .world_rank = event.world_rank,
                         .text = event.text,
                         .slowdown = event.number("slowdown", 0),
                         .lost_ms = event.number("lost_ms", kUnknown),
                         .over = event.flag("over")});
  return records;
}

void read_config(RunData& run) {
  for (const char* name : {"/resolved.yaml", "/config.yaml"}) {
    const auto text = read_text(run.dir + name);
    if (!text) {
      if (text.error().os_error != ENOENT) run.remarks.push_back(text.error().message);
      continue;
    }
    auto fields = flat_config(text.value());
    if (fields) {
      run.config = std::move(fields).value();
      return;
    }
    run.remarks.push_back(run.dir + name + ": " + fields.error().message);
  }
}

// The samples in a log: lines "TIME step 50: sample", "---", the text, "---".
std::vector<TextSample> samples_of(std::string_view log) {
  constexpr std::string_view kHead = ": sample\n---\n", kEnd = "\n---\n", kStep = " step ";
  std::vector<TextSample> samples;
  for (size_t at = 0; (at = log.find(kHead, at)) != log.npos;) {
    const size_t text = at + kHead.size(), end = log.find(kEnd, text), step = log.rfind(kStep, at);
    if (end == log.npos || step == log.npos) break;
    const std::string number(log.substr(step + kStep.size(), at - step - kStep.size()));
    samples.push_back(
        {std::strtoll(number.c_str(), nullptr, 10), std::string(log.substr(text, std::min(end - text, kSampleBytes)))});
    at = end;
  }
  if (samples.size() > kMostSamples) samples.erase(samples.begin(), samples.end() - kMostSamples);
  return samples;
}

// The end of the log, however long that is.
std::string end_of_log(const std::string& run_dir) {
  const auto file = InputFile::open(run_dir + "/log.txt");
  if (!file) return "";
  const int64_t bytes = std::min(kLogBytes, file.value().bytes());
  std::string text(static_cast<size_t>(bytes), '\0');
  return file.value().read(text.data(), bytes, file.value().bytes() - bytes) ? text : "";
}

// Ranks that failed as a consequence of other failures share one incident per attempt.
void add_failures(const std::vector<RunEvent>& events, std::vector<Incident>& incidents) {
  std::map<std::string, std::pair<double, int>> consequences;  // by attempt: the time of the first one, and their
                                                               // number
  for (const RunEvent& event : events) {
    if (event.kind != RunEventKind::kFailure) continue;
    if (!event.flag("consequence")) {
      incidents.push_back({.time = event.time, .kind = "failure", .text = describe(event), .alarm = true});
      continue;
    }
    auto [place, first] = consequences.try_emplace(event.attempt, event.time, 0);
    ++place->second.second;
  }
  for (const auto& [attempt, seen] : consequences)
    incidents.push_back({.time = seen.first,
                         .kind = "failure",
                         .text = counted(seen.second, "rank") + " failed as a consequence",
                         .alarm = true});
}

}  // namespace

std::string RunData::field(std::string_view name) const {
  const auto known = std::find_if(config.begin(), config.end(), [&](const FlatField& f) { return f.name == name; });
  return known == config.end() ? "" : known->value;
}

const RunEvent* RunData::last_start() const {
  const auto start =
      std::find_if(events.rbegin(), events.rend(), [](const RunEvent& e) { return e.kind == RunEventKind::kStart; });
  return start == events.rend() ? nullptr : &*start;
}

std::vector<Incident> incidents_of(const std::vector<RunEvent>& events, const std::optional<EffectiveTime>& time,
                                   const RunMetrics& metrics) {
  std::vector<Incident> incidents;
  add_failures(events, incidents);
  for (const RunEvent& event : events) {
    Incident incident{.time = event.time, .kind = std::string(enum_name(event.kind)), .text = event.text};
    switch (event.kind) {
      case RunEventKind::kHang:
      case RunEventKind::kStraggler:
      case RunEventKind::kDrift:
        incident.alarm = !event.flag("over");
        incidents.push_back(std::move(incident));
        break;
      case RunEventKind::kDecision:
        if (event.string("action") == "done") break;
        incident.text = describe_decision(event);
        incident.alarm = event.string("action") == "stop";
        incidents.push_back(std::move(incident));
        break;
      case RunEventKind::kExclusion:
      case RunEventKind::kClearExclusion:
        incident.text = event.host + (event.text.empty() ? "" : ": " + event.text);
        incidents.push_back(std::move(incident));
        break;
      case RunEventKind::kEnd:
        if (event.number("code", 0) == 0) break;
        incident.kind = "stop";
        incident.alarm = event.number("code", 0) != static_cast<double>(ExitCode::kDrained);
        incident.text = fmt::format("ended with status {:.0f}{}", event.number("code", 0),
                                    event.text.empty() ? "" : ": " + event.text);
        incidents.push_back(std::move(incident));
        break;
      default:
        break;
    }
  }
  if (time)
    for (size_t k = 0; k + 1 < time->attempts.size(); ++k)
      if (const AttemptTime& attempt = time->attempts[k]; attempt.outcome.empty())
        incidents.push_back(
            {.time = attempt.end, .kind = "gone", .text = "the attempt ended without a message", .alarm = true});
  for (const NotFiniteRecord& record : metrics.not_finite)
    incidents.push_back(
        {.time = record.time,
         .kind = "not finite",
         .text = fmt::format("step {}{}{}", record.step, record.places.empty() ? "" : ": ", record.places),
         .alarm = true});
  std::stable_sort(incidents.begin(), incidents.end(),
                   [](const Incident& a, const Incident& b) { return a.time < b.time; });
  for (Incident& incident : incidents) incident.step = step_at(metrics, incident.time);
  return incidents;
}

Result<RunData> read_run_data(const std::string& run_dir, int64_t heat_bytes) {
  std::error_code problem;
  const fs::path path = fs::canonical(run_dir, problem);
  if (problem) return usage_error("{}: {}; give the folder of a run (run.dir)", run_dir, problem.message());
  RunData run{.dir = path.string(), .name = path.filename().string()};
  if (!is_run(run.dir))
    return usage_error("{}: not the folder of a run, since it has neither config.yaml, metrics.jsonl nor events.jsonl",
                       run_dir);
  read_config(run);
  if (const std::string name = run.field("run.name"); !name.empty()) run.name = name;
  MetricsReader reader(run.dir + "/metrics.jsonl");
  if (auto read = reader.poll(); !read)
    run.remarks.push_back(read.error().message + ": steps after that are not shown");
  run.metrics = reader.metrics();
  if (run.metrics.strange_lines > 0)
    run.remarks.push_back(
        fmt::format("lines of metrics.jsonl that cannot be parsed and are ignored: {}", run.metrics.strange_lines));
  if (auto history = read_events_and_steps(run.dir); history) {
    run.events = std::move(history.value().events);
    run.time = effective_time({.events = run.events, .steps = std::move(history.value().steps)});
  } else {
    run.remarks.push_back(history.error().message + "; attempts, incidents and wall time are unknown");
  }
  if (auto heat = read_rank_heat(run.dir, heat_bytes); heat)
    run.heat = std::move(heat).value();
  else if (heat.error().os_error != ENOENT)
    run.remarks.push_back(heat.error().message);
  run.waits = read_rank_waits(run.dir, run.remarks);
  run.changes = changes_of(run.events);
  run.stragglers = stragglers_of(run.events);
  run.incidents = incidents_of(run.events, run.time, run.metrics);
  run.samples = samples_of(end_of_log(run.dir));
  return run;
}

std::string gpu_text(const StepRecord& step, std::string_view between) {
  std::string text;
  const auto add = [&](double value, const std::string& figure) {
    if (std::isfinite(value)) text.append(text.empty() ? "" : between).append(figure);
  };
  add(step.gpu_mhz, fmt::format("{:.0f} MHz", step.gpu_mhz));
  add(step.gpu_watts, fmt::format("{:.0f} W", step.gpu_watts));
  add(step.gpu_celsius, fmt::format("{:.0f} °C", step.gpu_celsius));
  add(step.gpu_memory_bytes, fmt::format("{:.1f} GiB in use", step.gpu_memory_bytes / (1 << 30)));
  return text;
}

RecentSpeed recent_speed(const RunMetrics& metrics) {
  std::vector<double> ms, tokens, mfu, imbalance;
  const size_t first = metrics.steps.size() > kRecentSteps ? metrics.steps.size() - kRecentSteps : 0;
  for (size_t i = first; i < metrics.steps.size(); ++i) {
    const StepRecord& step = metrics.steps[i];
    if (std::isfinite(step.step_ms)) ms.push_back(step.step_ms);
    if (std::isfinite(step.tokens_per_s)) tokens.push_back(step.tokens_per_s);
    if (std::isfinite(step.mfu)) mfu.push_back(step.mfu);
    if (std::isfinite(step.imbalance)) imbalance.push_back(step.imbalance);
  }
  const auto middle = [](const std::vector<double>& values) { return values.empty() ? kUnknown : median(values); };
  RecentSpeed speed{.steps = ms.size(),
                    .step_ms = middle(ms),
                    .tokens_per_s = middle(tokens),
                    .mfu = middle(mfu),
                    .imbalance = middle(imbalance)};
  if (tokens.empty()) return speed;
  std::sort(tokens.begin(), tokens.end());
  speed.tokens_low = tokens[tokens.size() / 20];
  speed.tokens_high = tokens[tokens.size() - 1 - tokens.size() / 20];
  return speed;
}

}  // namespace tri
