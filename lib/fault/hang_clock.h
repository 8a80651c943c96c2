// Deadlines over the progress that one rank's flight recorder shows. Pure arithmetic over sightings, which
// lib/fault/watchdog.h takes a few times a second.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "io/flight_recorder/image.h"
#include "lib/config/config.h"
#include "lib/fault/hang_locator.h"

namespace tri {

// Seconds without progress after which the job ends, by phase.
struct PhaseDeadlines {
  std::array<double, kNumRunPhases> seconds{};
  bool learns_step = false;  // until five steps are known, kStep has the seconds of the set-up
  double step_floor = 0;     // minimum of the learned value
  double step_growth = 1;    // factor on the learned value: how much longer a later step may take (data.batch_ramp)

  double& operator[](RunPhase phase) { return seconds[static_cast<size_t>(phase)]; }
  double operator[](RunPhase phase) const { return seconds[static_cast<size_t>(phase)]; }
};
PhaseDeadlines phase_deadlines(const FaultConfig& fault, bool one_node, double step_growth = 1);

// The fields of a flight::Image at one time.
struct Sighting {
  int64_t now = 0;  // nanoseconds
  RunPhase phase = RunPhase::kSetup;
  uint32_t progress = 0;
  int64_t step = 0, step_nanoseconds = 0;
  WriterState writer = WriterState::kIdle;
  uint32_t writer_progress = 0;
  bool lines_pending = false;  // of metrics.jsonl
  uint32_t lines_written = 0;
};
Sighting sighting_of(const flight::Image& image, int64_t now);

// The phase, the checkpoint writer and the line writer each have a clock that restarts on progress. A clock counts the
// time in which this process was awake, at most a second between two sightings, so a job that is suspended as a whole
// and resumed has not hung. Both writers have the deadline of a checkpoint or, while one is read, of a load.
class HangClock {
 public:
  static constexpr int kWarmUpSteps = 5;       // the first steps of a start are not typical of later ones
  static constexpr double kLearnedFactor = 5;  // times the 99th percentile of a step
  static constexpr size_t kRememberedSteps = 1000;
  static constexpr double kLongestTick = 1;  // second

  enum class Alarm {
    kNone,
    kDump,  // half of a deadline has expired; raised once per hang
    kEnd,   // the full deadline has expired; raised as long as there is no progress
  };
  struct Verdict {
    Alarm alarm = Alarm::kNone;
    HangTrigger trigger;        // the cause of an alarm; its world_rank is the caller's
    double deadline = 0;        // seconds
    int64_t last_progress = 0;  // Sighting::now
  };

  explicit HangClock(const PhaseDeadlines& deadlines) : deadlines_(deadlines) {}

  Verdict see(const Sighting& s);
  double deadline(RunPhase phase) const;  // seconds

 private:
  struct Clock {
    double seconds = 0;  // awake, since the last progress
    int64_t last_progress = 0;
    bool dumped = false;
    Alarm pass(double awake, double deadline);
    void restart(int64_t now) { *this = {.last_progress = now}; }
  };
  void learn(const Sighting& s);

  PhaseDeadlines deadlines_;
  bool first_ = true;
  Sighting last_;
  Clock phase_, writer_, lines_;
  int64_t num_steps_ = 0;           // completed since the start, as far as observed
  std::vector<int64_t> durations_;  // nanoseconds, of the last kRememberedSteps after the warm-up
  size_t next_ = 0;                 // index in it that is overwritten next
  double learned_ = 0;              // seconds; 0: nothing learned yet
};

}  // namespace tri
