// Hand-written histories of runs, and conditions that hold for the time of any of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "lib/observe/status/effective_time.h"

namespace tri::test {

using Seconds = std::map<WallTime, double>;

struct SchedulerJob {
  std::string name;
  double submitted = 0, allocated = 0;  // 0: unknown
};

// Writes a history by hand. Times are seconds after an arbitrary moment.
class Story {
 public:
  static constexpr double kEpoch = 1763800000;

  using Job = SchedulerJob;

  Story& begin(double began, const Job& job = {}) {
    attempt_ = "attempt " + std::to_string(number_++);
    job_ = job.name;
    now_ = began;
    add(RunEventKind::kBegin, {{"began", kEpoch + began}});
    if (job.submitted > 0) history_.events.back().fields["submitted"] = kEpoch + job.submitted;
    if (job.allocated > 0) history_.events.back().fields["allocated"] = kEpoch + job.allocated;
    return *this;
  }
  // Sets the machine's boot and its monotonic clock for the attempt that has just begun.
  Story& on(const std::string& boot, double uptime) {
    history_.events.back().fields["boot"] = boot;
    history_.events.back().fields["uptime"] = uptime;
    return *this;
  }
  // Adds a start after 2 s of set-up and 3 s of loading, with `step` steps done.
  Story& start(int64_t step) {
    now_ += 5;
    step_ = step;
    add(RunEventKind::kStart, {{"step", step}, {"startup.mpi", 2.0}, {"startup.checkpoint", 3.0}});
    history_.steps.push_back({.attempt = attempt_});
    return *this;
  }
  Story& steps(int count, double seconds = 1, double data_seconds = 0) {
    for (int i = 0; i < count; ++i) {
      now_ += seconds;
      history_.steps.back().steps.push_back(
          {.time = kEpoch + now_, .seconds = seconds, .data_seconds = data_seconds, .step = ++step_});
    }
    return *this;
  }
  Story& span(const std::string& what, double seconds) {
    now_ += seconds;
    add(RunEventKind::kSpan, {{"what", what}, {"seconds", seconds}});
    return *this;
  }
  Story& published() {
    history_.steps.back().newest_checkpoint = step_;
    return *this;
  }
  Story& wait(double seconds) {
    now_ += seconds;
    return *this;
  }
  Story& failure(int code = 4) {
    add(RunEventKind::kFailure, {{"code", int64_t{code}}, {"consequence", false}});
    return *this;
  }
  Story& consequence() {
    add(RunEventKind::kFailure, {{"code", int64_t{5}}, {"consequence", true}});
    return *this;
  }
  Story& hang(double began) {
    add(RunEventKind::kHang, {{"began", kEpoch + began}});
    return *this;
  }
  Story& end(int code = 0) {
    add(RunEventKind::kEnd, {{"code", int64_t{code}}});
    return *this;
  }
  // Adds an event of the driver about attempt `number`, at its own time; a span is one of five seconds of diagnosis.
  Story& driver(RunEventKind kind, int number, double time) {
    RunEvent event{.time = kEpoch + time, .attempt = "attempt " + std::to_string(number), .kind = kind};
    if (kind == RunEventKind::kSpan) event.fields = {{"what", "diagnosis"}, {"seconds", 5.0}};
    history_.events.push_back(std::move(event));
    return *this;
  }
  // The driver reports what ended attempt `number`.
  Story& driver_names(const std::string& cause, int number, double noticed, double time) {
    driver(RunEventKind::kAttemptEnd, number, time);
    history_.events.back().text = cause;
    history_.events.back().fields = {{"cause", cause}, {"noticed", kEpoch + noticed}};
    return *this;
  }
  // A failure on a node whose clock is `ahead` seconds ahead.
  Story& elsewhere(double ahead) {
    wait(ahead).consequence();
    return wait(-ahead);
  }
  Story& as(const std::string& attempt) {
    attempt_ = attempt;
    return *this;
  }
  const EventsAndSteps& history() const { return history_; }
  double now() const { return now_; }
  int attempts() const { return number_; }
  EffectiveTime time() const { return effective_time(history_).value(); }

 private:
  void add(RunEventKind kind, std::map<std::string, EventField> fields) {
    RunEvent event{.time = kEpoch + now_, .attempt = attempt_, .job = job_, .kind = kind, .fields = std::move(fields)};
    history_.events.push_back(std::move(event));
  }

  EventsAndSteps history_;
  std::string attempt_, job_;
  int number_ = 0;
  double now_ = 0;
  int64_t step_ = 0;
};

// Categories that are not listed must be 0, and no others exist.
inline void expect_seconds(const EffectiveTime& time, const Seconds& expected) {
  double sum = 0;
  for (const auto& [category, name] : EnumNames<WallTime>::table) {
    const auto known = expected.find(category);
    EXPECT_NEAR(time.of(category), known == expected.end() ? 0 : known->second, 1e-5) << name;
    sum += time.of(category);
  }
  EXPECT_NEAR(sum, time.wall(), 1e-5);
}

inline void expect_partition(const EffectiveTime& time) {
  ASSERT_GE(time.wall(), 0);
  double at = time.begin;
  for (const WallInterval& interval : time.intervals) {
    EXPECT_EQ(interval.begin, at);
    EXPECT_LT(interval.begin, interval.end);
    at = interval.end;
  }
  EXPECT_EQ(at, time.end);
  const double sum = std::accumulate(time.seconds.begin(), time.seconds.end(), 0.0);
  EXPECT_NEAR(sum, time.wall(), 1e-6 * std::max(1.0, time.wall()));
  for (const double seconds : time.seconds) EXPECT_GE(seconds, 0);
}

}  // namespace tri::test
