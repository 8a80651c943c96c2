#include "lib/fault/hang_clock.h"

#include <algorithm>

namespace tri {
namespace {

constexpr double kFloorOneNode = 60, kFloorNodes = 180;  // seconds

}  // namespace

PhaseDeadlines phase_deadlines(const FaultConfig& fault, bool one_node, double step_growth) {
  PhaseDeadlines deadlines;
  deadlines[RunPhase::kSetup] = fault.setup_seconds;
  deadlines[RunPhase::kLoad] = fault.load_seconds;
  deadlines[RunPhase::kStep] = fault.step_seconds > 0 ? fault.step_seconds : fault.setup_seconds;
  deadlines[RunPhase::kCheckpoint] = fault.checkpoint_seconds;
  deadlines[RunPhase::kEvaluation] = fault.evaluation_seconds;
  deadlines[RunPhase::kSample] = fault.evaluation_seconds;
  deadlines[RunPhase::kFinish] = fault.checkpoint_seconds;
  deadlines.learns_step = fault.step_seconds == 0;
  deadlines.step_floor = one_node ? kFloorOneNode : kFloorNodes;
  deadlines.step_growth = step_growth;
  return deadlines;
}

Sighting sighting_of(const flight::Image& image, int64_t now) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {.now = now,
          .phase = static_cast<RunPhase>(std::min<uint32_t>(image.phase.load(kRelaxed), kNumRunPhases - 1)),
          .progress = image.progress.load(kRelaxed),
          .step = image.step.load(kRelaxed),
          .step_nanoseconds = image.step_nanoseconds.load(kRelaxed),
          .writer = static_cast<WriterState>(image.writer.state.load(kRelaxed)),
          .writer_progress = image.writer.progress.load(kRelaxed),
          .lines_pending = image.lines.state.load(kRelaxed) != static_cast<uint32_t>(WriterState::kIdle),
          .lines_written = image.lines.progress.load(kRelaxed)};
}

double HangClock::deadline(RunPhase phase) const {
  if (phase == RunPhase::kStep && deadlines_.learns_step && learned_ > 0)
    return std::max(deadlines_.step_floor, deadlines_.step_growth * learned_);
  return deadlines_[phase];
}

HangClock::Alarm HangClock::Clock::pass(double awake, double deadline) {
  seconds += awake;
  if (seconds >= deadline) return Alarm::kEnd;
  if (dumped || seconds < deadline / 2) return Alarm::kNone;
  dumped = true;
  return Alarm::kDump;
}

// Records the duration of the last completed step, if one has completed since the last sighting. Some short steps are
// missed.
void HangClock::learn(const Sighting& s) {
  if (s.step_nanoseconds == 0 || (s.step == last_.step && s.step_nanoseconds == last_.step_nanoseconds)) return;
  // Before a rank's first step has ended, its step number may have jumped to where a checkpoint resumes.
  num_steps_ += last_.step_nanoseconds == 0 ? 1 : std::max<int64_t>(1, s.step - last_.step);
  if (num_steps_ <= kWarmUpSteps) return;
  if (durations_.size() < kRememberedSteps)
    durations_.push_back(s.step_nanoseconds);
  else
    durations_[next_++ % kRememberedSteps] = s.step_nanoseconds;
  std::vector<int64_t> sorted = durations_;
  const auto percentile = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) * 99 / 100);
  std::nth_element(sorted.begin(), percentile, sorted.end());
  learned_ = kLearnedFactor * static_cast<double>(*percentile) * 1e-9;
}

HangClock::Verdict HangClock::see(const Sighting& s) {
  const bool writes = s.writer != WriterState::kIdle;
  if (first_) {
    phase_.restart(s.now);
    writer_.restart(s.now);
    lines_.restart(s.now);
    first_ = false;
  } else {
    learn(s);
    if (s.phase != last_.phase || s.progress != last_.progress) phase_.restart(s.now);
    if (!writes || s.writer != last_.writer || s.writer_progress != last_.writer_progress) writer_.restart(s.now);
    if (!s.lines_pending || s.lines_written != last_.lines_written) lines_.restart(s.now);
  }
  const double awake = last_.now == 0 ? 0 : std::min(static_cast<double>(s.now - last_.now) * 1e-9, kLongestTick);
  last_ = s;

  const double phase_limit = deadline(s.phase);
  const double writer_limit = deadlines_[s.writer == WriterState::kReads ? RunPhase::kLoad : RunPhase::kCheckpoint];
  const auto pass = [&](Clock& clock, double limit) {
    return clock.pass(clock.last_progress == s.now ? 0 : awake, limit);
  };
  const Alarm of_phase = pass(phase_, phase_limit);
  const Alarm of_checkpoint = pass(writer_, writer_limit), of_lines = pass(lines_, writer_limit);
  const Alarm of_writer = std::max(of_checkpoint, of_lines);
  if (of_phase == Alarm::kNone && of_writer == Alarm::kNone) return {};
  const bool writer = of_writer > of_phase;
  const Clock& clock = !writer ? phase_ : of_checkpoint == of_writer ? writer_ : lines_;
  return {.alarm = std::max(of_phase, of_writer),
          .trigger = {.phase = s.phase, .writer = writer, .seconds = clock.seconds},
          .deadline = writer ? writer_limit : phase_limit,
          .last_progress = clock.last_progress};
}

}  // namespace tri
