#include "lib/report/text.h"

#include <algorithm>
#include <map>

#include "io/base/date.h"
#include "io/base/format.h"
#include "io/base/median.h"
#include "lib/report/terminal_chart.h"

namespace tri {
namespace {

constexpr int kLabel = 16;          // width of the label column
constexpr size_t kIncidents = 6;    // listed per run
constexpr size_t kDifferences = 8;  // listed fields that differ between runs
constexpr size_t kChanges = 6;      // listed fields that differ between the starts of one run

using Lines = std::vector<std::string>;

std::vector<double> losses_of(const RunMetrics& metrics) {
  std::vector<double> values;
  values.reserve(metrics.steps.size());
  for (const StepRecord& step : metrics.steps) values.push_back(step.loss);
  return values;
}

std::string median_duration(std::vector<double> seconds) { return format_duration(median(std::move(seconds))); }

std::string checkpoints_line(const RunMetrics& metrics) {
  if (metrics.checkpoints.empty()) return "no checkpoint was written";
  std::vector<double> stalls, writes;
  for (const CheckpointRecord& checkpoint : metrics.checkpoints) {
    stalls.push_back(checkpoint.stall_seconds);
    writes.push_back(checkpoint.seconds);
  }
  const CheckpointRecord& newest = metrics.checkpoints.back();
  return fmt::format("{}, the newest of step {}, {}; training waited {:.0f} ms (at most {:.0f} ms); written in {}",
                     metrics.checkpoints.size(), newest.step, format_bytes(newest.bytes), 1e3 * median(stalls),
                     1e3 * *std::max_element(stalls.begin(), stalls.end()), median_duration(writes));
}

std::string wall_line(const RunData& run) {
  if (!run.time) return "unknown";
  std::vector<NamedShare> shares;
  for (const WallTimeMeaning& known : wall_time_meanings())
    shares.push_back(
        {std::string(enum_name(known.category)), run.time->of(known.category) / std::max(1e-9, run.time->wall())});
  std::stable_sort(shares.begin(), shares.end(),
                   [](const NamedShare& a, const NamedShare& b) { return a.share > b.share; });
  std::string text;
  for (const NamedShare& share : shares)
    if (share.share >= 0.0005)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", share.name, 100 * share.share);
  return text;
}

// Wraps to a second line if one is too short.
void add_fact(Lines& lines, std::string_view label, const std::string& value, int columns) {
  if (value.empty()) return;
  const std::string text = plain(value);
  const int room = columns - kLabel;
  const std::string name = padded(plain(label), kLabel);
  const size_t end = columns_of(text) <= room ? text.npos : text.rfind(' ', bytes_of(text, room));
  if (end == text.npos) return lines.push_back(name + cut(text, room));
  lines.push_back(name + cut(text.substr(0, end), room));
  lines.push_back(padded("", kLabel) + cut(text.substr(end + 1), room));
}

// Writes the number of incidents, then the newest ones.
void add_incidents(Lines& lines, const RunData& run, int columns) {
  if (run.incidents.empty()) return add_fact(lines, "Incidents", "none recorded", columns);
  const size_t first = run.incidents.size() > kIncidents ? run.incidents.size() - kIncidents : 0;
  add_fact(lines, "Incidents",
           fmt::format("{}{}", run.incidents.size(), first > 0 ? fmt::format("; the newest {}:", kIncidents) : ":"),
           columns);
  for (size_t i = first; i < run.incidents.size(); ++i) {
    const Incident& incident = run.incidents[i];
    const std::string text = fmt::format("  {}  step {}  {}: {}", local_date(incident.time, "%m-%d %T"), incident.step,
                                         incident.kind, incident.text);
    lines.push_back(cut(plain(text), columns));
  }
}

// Writes the ranks whose newest record reports them as slow.
void add_stragglers(Lines& lines, const RunData& run, int columns) {
  std::map<int, const StragglerRecord*> newest;
  for (const StragglerRecord& record : run.stragglers) newest[record.world_rank] = &record;
  std::erase_if(newest, [](const auto& entry) { return entry.second->over; });
  if (newest.empty()) return run.heat ? add_fact(lines, "Stragglers", "none", columns) : void();
  size_t listed = 0;
  for (const auto& [rank, record] : newest) {
    if (++listed > 3) break;
    add_fact(lines, listed == 1 ? "Stragglers" : "", record->text, columns);
  }
  if (newest.size() > 3) add_fact(lines, "", fmt::format("and {} more", newest.size() - 3), columns);
}

// Returns a field's rank among those that differ; the lowest comes first. Fields that decide what is trained come
// before those that decide where it runs. Derived fields and places come last.
int importance(std::string_view field) {
  constexpr std::string_view kDerived[] = {"parallel.dp",
                                           "parallel.tp_transfers",
                                           "parallel.pp_transfers",
                                           "parallel.dp_transfers",
                                           "lr.decay_steps",
                                           "model.attention",
                                           "run.name",
                                           "run.dir",
                                           "checkpoint.dir"};
  constexpr std::string_view kSections[] = {"lr.",       "optimizer.",  "data.",  "model.", "precision.", "run.steps",
                                            "parallel.", "checkpoint.", "fault.", "run.",   "metrics.",   "cluster."};
  const auto* const section = std::find_if(std::begin(kSections), std::end(kSections),
                                           [&](std::string_view prefix) { return field.starts_with(prefix); });
  const bool is_derived = std::find(std::begin(kDerived), std::end(kDerived), field) != std::end(kDerived);
  return static_cast<int>(section - std::begin(kSections)) + (is_derived ? 100 : 0);
}

// Sorted by importance, then by the newest start.
void add_changes(Lines& lines, const RunData& run, int columns) {
  std::vector<const ConfigChange*> sorted;
  for (const ConfigChange& change : run.changes) sorted.push_back(&change);
  std::stable_sort(sorted.begin(), sorted.end(), [](const ConfigChange* a, const ConfigChange* b) {
    return std::pair(importance(a->name), -a->start) < std::pair(importance(b->name), -b->start);
  });
  const size_t shown = std::min(sorted.size(), kChanges);
  for (size_t i = 0; i < shown; ++i) {
    const ConfigChange& change = *sorted[i];
    add_fact(lines, i == 0 ? "Config changes" : "",
             fmt::format("start {}: {}: {} -> {}", change.start + 1, change.name, change.before, change.after),
             columns);
  }
  if (shown < sorted.size()) add_fact(lines, "", fmt::format("and {} more", sorted.size() - shown), columns);
}

Lines one_run(const RunData& run, int columns) {
  Lines lines{cut(plain(run.name), columns)};
  for (const RunFact& fact : run_facts(run)) add_fact(lines, fact.label, fact.value, columns);
  if (!run.metrics.steps.empty()) {
    lines.push_back(fmt::format("Loss (logarithmic), steps {} to {}", run.metrics.steps.front().step,
                                run.metrics.steps.back().step));
    for (std::string& line : curve_chart(losses_of(run.metrics), std::min(columns, 90), 6, ChartScale::kLogarithmic))
      lines.push_back(std::move(line));
    const auto shares = step_shares(run.metrics, run.metrics.steps.size());
    add_fact(lines, "Step", share_bar(shares, columns - kLabel), columns);
    add_fact(lines, "", share_legend(shares), columns);
  }
  add_fact(lines, "Wall time", wall_line(run), columns);
  add_fact(lines, "Checkpoints", checkpoints_line(run.metrics), columns);
  add_stragglers(lines, run, columns);
  add_incidents(lines, run, columns);
  add_changes(lines, run, columns);
  for (const std::string& remark : run.remarks) add_fact(lines, "Note", remark, columns);
  return lines;
}

// Shows the facts in one column per run.
Lines several_runs(const std::vector<RunData>& runs, int columns) {
  const int width = std::max(8, (columns - kLabel) / static_cast<int>(runs.size()));
  std::vector<std::vector<RunFact>> facts;
  std::string head = padded("", kLabel);
  for (const RunData& run : runs) {
    facts.push_back(run_facts(run));
    facts.back().push_back({"Wall time", wall_line(run)});
    facts.back().push_back({"Checkpoints", checkpoints_line(run.metrics)});
    facts.back().push_back({"Incidents", std::to_string(run.incidents.size())});
    head += padded(plain(run.name), width - 1) + " ";
  }
  Lines lines{cut(head, columns)};
  for (size_t f = 0; f < facts.front().size(); ++f) {
    if (std::all_of(facts.begin(), facts.end(), [f](const auto& of_run) { return of_run[f].value.empty(); })) continue;
    std::string line = padded(facts.front()[f].label, kLabel);
    for (const auto& of_run : facts) line += padded(plain(of_run[f].value), width - 1) + " ";
    lines.push_back(cut(line, columns));
  }
  for (const RunData& run : runs) {
    if (run.metrics.steps.empty()) continue;
    add_fact(lines, run.name + ":", "loss, steps to " + std::to_string(run.metrics.steps.back().step), columns);
    for (std::string& line : curve_chart(losses_of(run.metrics), std::min(columns, 60), 3, ChartScale::kLogarithmic))
      lines.push_back(std::move(line));
  }
  std::vector<std::string> names;
  for (const FlatField& field : runs.front().config) {
    const auto same = [&](const RunData& run) { return run.field(field.name) == field.value; };
    if (!std::all_of(runs.begin(), runs.end(), same) && (field.name == "run.steps" || !field.name.starts_with("run.")))
      names.push_back(field.name);
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const std::string& a, const std::string& b) { return importance(a) < importance(b); });
  const size_t shown = std::min(names.size(), kDifferences);
  for (size_t i = 0; i < shown; ++i) {
    std::string values;
    for (const RunData& run : runs) values += (values.empty() ? "" : " | ") + run.field(names[i]);
    add_fact(lines, i == 0 ? "Config differs" : "", names[i] + ": " + values, columns);
  }
  if (shown < names.size()) add_fact(lines, "", fmt::format("and {} more", names.size() - shown), columns);
  return lines;
}

}  // namespace

std::vector<NamedShare> step_shares(const RunMetrics& metrics, size_t last_steps) {
  std::vector<NamedShare> shares;
  double sum = 0;
  const size_t count = metrics.steps.size(), first = count - std::min(count, last_steps);
  for (size_t part = 0; part < StepTimes::names().size(); ++part) {
    double ms = 0;
    for (size_t i = first; i < count; ++i) ms += metrics.steps[i].times_ms[part];
    shares.push_back({StepTimes::names()[part], ms});
    sum += ms;
  }
  if (!(sum > 0)) return {};
  for (NamedShare& share : shares) share.share /= sum;
  return shares;
}

std::string report_text(const std::vector<RunData>& runs, int columns) {
  Lines lines = runs.size() == 1 ? one_run(runs.front(), columns) : several_runs(runs, columns);
  if (lines.size() > static_cast<size_t>(kTextLines)) {
    lines.resize(static_cast<size_t>(kTextLines - 1));
    lines.push_back(cut("... to see the rest, write the page with `trireme report RUN_DIR`", columns));
  }
  std::string text;
  for (const std::string& line : lines) text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  return text;
}

}  // namespace tri
