#include "lib/observe/status/effective_time.h"

#include <algorithm>
#include <map>
#include <set>

#include "io/base/median.h"
#include "lib/observe/status/run_attempts.h"

namespace tri {
namespace {

constexpr std::array<std::string_view, 3> kLoadPhases = {"search for a checkpoint", "checkpoint",
                                                         "checkpoint in memory"};

// If several candidates cover a moment, the later one in this list wins.
enum Layer { kBackground, kUnfinishedStep, kEnding, kSteps, kSpansOfAttempt, kSpansOfOthers };

struct Candidate {
  Layer layer;
  WallInterval interval;
};

class Candidates {
 public:
  void add(Layer layer, WallTime category, double begin, double end, std::string phase = "") {
    if (begin < end) list_.push_back({layer, {begin, end, category, std::move(phase)}});
  }
  const std::vector<Candidate>& list() const { return list_; }

 private:
  std::vector<Candidate> list_;
};

WallTime category_of_phase(const std::string& phase) {
  const bool load = std::find(kLoadPhases.begin(), kLoadPhases.end(), phase) != kLoadPhases.end();
  return load ? WallTime::kLoad : WallTime::kStartup;
}

// Adds the time from the end of `earlier`, if there is one, to the beginning of `attempt`.
void add_gap(const RunAttempt* earlier, const RunAttempt& attempt, Candidates& candidates) {
  double begin = attempt.submitted > 0 ? attempt.submitted : attempt.allocated > 0 ? attempt.allocated : attempt.began;
  if (earlier != nullptr) {
    begin = earlier->end;
    const bool without_jobs = earlier->job.empty() && attempt.job.empty();
    const bool stood = without_jobs ? earlier->ended.has_value() : !attempt.of_the_job_of(*earlier);
    candidates.add(kBackground, stood ? WallTime::kStopped : WallTime::kRestart, begin, attempt.began);
  }
  if (attempt.allocated == 0 || attempt.allocated < begin) return;  // it continues in an existing allocation
  if (attempt.submitted > 0)
    candidates.add(kBackground, WallTime::kQueue, std::max(begin, attempt.submitted), attempt.allocated);
  candidates.add(kBackground, WallTime::kStartup, attempt.allocated, attempt.began, "launch");
}

void add_startup(const RunAttempt& attempt, Candidates& candidates) {
  if (!attempt.started) {
    candidates.add(kBackground, WallTime::kStartup, attempt.began, attempt.end, "not completed");
    return;
  }
  double at = attempt.began;
  for (const auto& [phase, seconds] : attempt.startup) {
    const double end = std::min(at + seconds, *attempt.started);
    const WallTime category = category_of_phase(phase);
    candidates.add(kBackground, category, at, end, category == WallTime::kStartup ? phase : "");
    at = std::max(at, end);
  }
  candidates.add(kBackground, WallTime::kStartup, at, *attempt.started, "files");
}

void add_attempt(const RunAttempt& attempt, Candidates& candidates) {
  const auto within = [&](Layer layer, WallTime category, double begin, double end) {
    candidates.add(layer, category, std::max(begin, attempt.began), std::min(end, attempt.end));
  };
  add_startup(attempt, candidates);
  double active = attempt.started.value_or(attempt.end);  // the end of the last completed activity
  within(kBackground, WallTime::kOther, active, attempt.end);
  for (const StepLine& step : attempt.steps) {
    const WallTime category = step.step <= attempt.kept ? WallTime::kProductive : WallTime::kRepeated;
    within(kSteps, category, step.time - step.seconds, step.time);
    active = std::max(active, step.time);
  }
  for (const RunAttempt::Span& span : attempt.spans) {
    const bool own = span.what == WallTime::kCheckpoint || span.what == WallTime::kEvaluation;
    if (own)
      within(kSpansOfAttempt, span.what, span.begin, span.end);
    else
      candidates.add(kSpansOfOthers, span.what, span.begin, span.end);
    if (own) active = std::max(active, span.end);
  }
  if (!attempt.cause) return;
  within(kUnfinishedStep, WallTime::kRepeated, active, attempt.cause_time);
  within(kEnding, WallTime::kDetection, attempt.cause_time, attempt.end);
}

void append(const WallInterval& next, std::vector<WallInterval>& intervals) {
  const bool goes_on =
      !intervals.empty() && intervals.back().category == next.category && intervals.back().phase == next.phase;
  if (goes_on)
    intervals.back().end = next.end;
  else
    intervals.push_back(next);
}

// At each moment between `begin` and `end` the highest layer wins; within a layer, the candidate added last.
std::vector<WallInterval> side_by_side(const std::vector<Candidate>& candidates, double begin, double end) {
  struct Edge {
    double time;
    bool opens;
    size_t candidate;
  };
  std::vector<Edge> edges;
  edges.reserve(2 * candidates.size() + 1);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const WallInterval& interval = candidates[i].interval;
    edges.push_back({std::clamp(interval.begin, begin, end), true, i});
    edges.push_back({std::clamp(interval.end, begin, end), false, i});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::pair(a.time, !a.opens) < std::pair(b.time, !b.opens);  // open before closing
  });
  std::vector<WallInterval> intervals;
  std::set<std::pair<Layer, size_t>> open;
  double at = begin;
  const auto advance = [&](double time) {
    if (time <= at) return;
    WallInterval next{.begin = at, .end = time};
    if (!open.empty()) {
      const WallInterval& top = candidates[open.rbegin()->second].interval;
      next.category = top.category;
      next.phase = top.phase;
    }
    append(next, intervals);
    at = time;
  };
  for (const Edge& edge : edges) {
    advance(edge.time);
    const auto key = std::pair(candidates[edge.candidate].layer, edge.candidate);
    if (edge.opens)
      open.insert(key);
    else
      open.erase(key);
  }
  advance(end);
  return intervals;
}

std::string outcome_of(const RunAttempt& attempt) {
  if (attempt.cause) return describe(*attempt.cause);
  if (!attempt.ended) return "";
  return attempt.ended->text.empty() ? "done" : attempt.ended->text;
}

AttemptTime figures_of(const RunAttempt& attempt) {
  AttemptTime figures{.attempt = attempt.name,
                      .job = attempt.job,
                      .begin = attempt.began,
                      .end = attempt.end,
                      .first_step = attempt.first_step,
                      .last_step = attempt.first_step,
                      .failed = attempt.cause.has_value(),
                      .outcome = outcome_of(attempt),
                      .origin = attempt.origin};
  for (const StepLine& step : attempt.steps) {
    figures.last_step = std::max(figures.last_step, step.step);
    ++(step.step <= attempt.kept ? figures.kept_steps : figures.lost_steps);
  }
  const auto& last = attempt.ended ? attempt.ended : attempt.cause;
  if (const double code = last ? last->number("code", -1) : -1; code >= 0) figures.code = static_cast<int>(code);
  return figures;
}

// Returns the seconds of a category between `begin` and `end`.
double seconds_between(const std::vector<WallInterval>& intervals, WallTime category, double begin, double end) {
  auto interval = std::partition_point(intervals.begin(), intervals.end(),
                                       [&](const WallInterval& earlier) { return earlier.end <= begin; });
  double seconds = 0;
  for (; interval != intervals.end() && interval->begin < end; ++interval)
    if (interval->category == category) seconds += std::min(interval->end, end) - std::max(interval->begin, begin);
  return seconds;
}

}  // namespace

const std::array<WallTimeMeaning, kNumWallTimes>& wall_time_meanings() {
  static constexpr std::array<WallTimeMeaning, kNumWallTimes> kMeanings = {{
      {WallTime::kQueue, "the job waits for its nodes", "infrastructure recovery"},
      {WallTime::kStartup, "from the allocation to the first step, without load", "initialization"},
      {WallTime::kLoad, "a checkpoint is searched for and read", "checkpoint restore"},
      {WallTime::kProductive, "steps that were not lost", "goodput"},
      {WallTime::kRepeated, "steps that were lost, complete or in progress", "wasted progress"},
      {WallTime::kCheckpoint, "training waits for a checkpoint", "checkpoint save"},
      {WallTime::kEvaluation, "evaluations and samples", "custom event"},
      {WallTime::kDetection, "from a failure or the last progress to the attempt's end", "infrastructure recovery"},
      {WallTime::kDiagnosis, "machines are examined", "infrastructure recovery"},
      {WallTime::kRestart, "from an attempt's end to the next attempt's processes", "infrastructure recovery"},
      {WallTime::kStopped, "the run was stopped on request", "infrastructure recovery"},
      {WallTime::kOther, "between steps: records, and the end of an attempt", "other"},
  }};
  return kMeanings;
}

std::optional<EffectiveTime> effective_time(const EventsAndSteps& history) {
  const std::vector<RunAttempt> attempts = run_attempts(history);
  if (attempts.empty()) return std::nullopt;
  Candidates candidates;
  for (size_t k = 0; k < attempts.size(); ++k) {
    add_gap(k == 0 ? nullptr : &attempts[k - 1], attempts[k], candidates);
    add_attempt(attempts[k], candidates);
  }
  const RunAttempt& first = attempts.front();
  EffectiveTime time{.begin = first.submitted > 0   ? first.submitted
                              : first.allocated > 0 ? first.allocated
                                                    : first.began,
                     .end = attempts.back().end,
                     .first_began = first.began};
  time.intervals = side_by_side(candidates.list(), time.begin, time.end);

  std::map<std::string, double> phases;
  for (const WallInterval& interval : time.intervals) {
    time.seconds[static_cast<size_t>(interval.category)] += interval.end - interval.begin;
    if (interval.category == WallTime::kStartup) phases[interval.phase] += interval.end - interval.begin;
  }
  time.startup_phases.assign(phases.begin(), phases.end());
  std::stable_sort(time.startup_phases.begin(), time.startup_phases.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<double> steps;
  for (const RunAttempt& attempt : attempts) {
    AttemptTime figures = figures_of(attempt);
    figures.productive_seconds = seconds_between(time.intervals, WallTime::kProductive, figures.begin, figures.end);
    time.kept_steps += figures.kept_steps;
    time.lost_steps += figures.lost_steps;
    time.attempts.push_back(std::move(figures));
    for (const StepLine& step : attempt.steps) {
      if (step.step > attempt.kept) continue;
      steps.push_back(step.seconds);
      time.data_wait_seconds += step.data_seconds;
    }
  }
  time.median_step_seconds = steps.empty() ? 0 : median(steps);
  time.data_wait_seconds = std::min(time.data_wait_seconds, time.of(WallTime::kProductive));
  return time;
}

std::vector<EffectiveShare> effective_shares(const EffectiveTime& time) {
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
  const double productive = time.of(WallTime::kProductive), wall = time.wall();
  const double steps = static_cast<double>(time.kept_steps) * time.median_step_seconds;
  const double running =
      productive + time.of(WallTime::kCheckpoint) + time.of(WallTime::kEvaluation) + time.of(WallTime::kOther);
  return {
      {"effective", "Trireme: effective time", "productive / wall", share(productive, wall)},
      {"megascale", "MegaScale: effective training time rate", "kept steps x median step / (wall - queue)",
       share(steps, wall - time.of(WallTime::kQueue))},
      {"goodput", "Google: goodput", "(productive - waits for data) / time since the first process",
       share(productive - time.data_wait_seconds, time.end - time.first_began)},
      {"ettr", "Meta: ETTR", "(productive + checkpoint + evaluation + other) / (wall - stopped)",
       share(running, wall - time.of(WallTime::kStopped))},
  };
}

std::vector<std::pair<std::string, double>> google_badput(const EffectiveTime& time) {
  std::map<std::string, double> seconds{{"data loading", time.data_wait_seconds}};
  for (const WallTimeMeaning& known : wall_time_meanings())
    if (known.category != WallTime::kProductive)
      seconds[std::string(known.google)] += seconds_between(time.intervals, known.category, time.first_began, time.end);
  std::vector<std::pair<std::string, double>> badput(seconds.begin(), seconds.end());
  std::stable_sort(badput.begin(), badput.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return badput;
}

}  // namespace tri
