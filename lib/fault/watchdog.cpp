#include "lib/fault/watchdog.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "io/base/log.h"

namespace tri {
namespace {

constexpr std::chrono::milliseconds kTick{200};
constexpr int64_t kNanoseconds = 1'000'000'000;
// SIGQUIT often reaches all ranks of a node; signals within this time request one dump.
constexpr int64_t kOneRequest = 5 * kNanoseconds;
constexpr int64_t kQueryInterval = kNanoseconds;  // of the streams
constexpr double kAnswerSeconds = 2, kTimeoutSeconds = 30;
// Seconds beyond the deadline. The rank with the most informative report ends the job once its dump, which has then had
// half of the deadline, is complete. The other ranks end the job if that rank does not. The rest takes up to 3.5 s (1.5
// for the event log's storage, 2 for the reaper), and everything 5 s, or 8 s if a fork is delayed.
constexpr double kDumpTimeout = 1, kSpeakerFirst = 1.5;
// Reporting the reason, forking and aborting can hang as well.
constexpr std::chrono::seconds kFailLimit{4};

const char* field_of(const HangTrigger& trigger) {
  if (trigger.writer && trigger.phase != RunPhase::kLoad) return "fault.checkpoint_seconds";
  switch (trigger.phase) {
    case RunPhase::kSetup:
      return "fault.setup_seconds";
    case RunPhase::kLoad:
      return "fault.load_seconds";
    case RunPhase::kStep:
      return "fault.step_seconds";
    case RunPhase::kCheckpoint:
    case RunPhase::kFinish:
      return "fault.checkpoint_seconds";
    case RunPhase::kEvaluation:
    case RunPhase::kSample:
      return "fault.evaluation_seconds";
  }
  return "fault";
}

// Returns, for example, "no progress for 60 s in phase step".
std::string no_progress(const HangTrigger& trigger) {
  return trigger.writer
             ? fmt::format("storage has made no progress with a rank's files for {:.0f} s", trigger.seconds)
             : fmt::format("no progress for {:.0f} s in phase {}", trigger.seconds, enum_name(trigger.phase));
}

// Logs the outcome of a dump. Runs on the thread that dumped, which may outlive the watchdog.
void report(const DumpOutcome& outcome) {
  const std::string records = outcome.problem.empty()
                                  ? fmt::format("records: {}", outcome.folder)
                                  : fmt::format("the records could not be written: {}", outcome.problem);
  if (outcome.trigger.world_rank < 0)
    return log_warn("SIGQUIT: the state of all ranks was dumped, and the run continues; {}", records);
  const std::string& headline = outcome.verdict.headline;
  log_error("{}: {}; unless progress resumes, {} ends the job; {}", no_progress(outcome.trigger),
            headline.empty() ? "the cause is unknown" : headline, field_of(outcome.trigger), records);
}

}  // namespace

Watchdog::Watchdog(const Context& context)
    : recorder_(context.recorder),
      job_(context.job),
      fault_(context.fault),
      step_growth_(context.step_growth),
      stacks_(context.recorder.image()),
      dumps_({.run_dir = context.run_dir,
              .attempt = context.attempt,
              .host = context.job.host(),
              .world_rank = context.job.world_rank(),
              .world_size = context.job.world_size(),
              .uses_nccl = context.uses_nccl},
             context.recorder.path(), context.job.node_ranks(),
             [on_report = context.on_report](const DumpOutcome& outcome) {
               report(outcome);
               if (on_report && outcome.trigger.world_rank >= 0) on_report(outcome);
             }) {
  answerer_ = std::thread([this] { answer_requests(); });
  watcher_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const MutexLock lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  watcher_.join();
  over_ = true;
  ++calls_;
  calls_.notify_all();
  answerer_.join();
}

void Watchdog::set_streams(StreamStates states) {
  const MutexLock lock(streams_mutex_);
  streams_ = std::move(states);
}

void Watchdog::watch() {
  name_thread("watchdog");
  const bool one_node = job_.node_size() == job_.world_size();
  HangClock clock(phase_deadlines(fault_, one_node, step_growth_));
  const MutexLock lock(mutex_);
  while (!ended_.wait_for(mutex_, kTick, [this]() TRI_REQUIRES(mutex_) { return end_; })) {
    const int64_t now = FlightRecorder::now();
    recorder_.image().beat = now;
    look_at_lines(now);
    look_at_requests();
    if (fault_.watchdog == Switch::kOff) continue;
    const HangClock::Verdict verdict = clock.see(sighting_of(recorder_.image(), now));
    if (verdict.alarm == HangClock::Alarm::kDump) dump(verdict);
    if (verdict.alarm == HangClock::Alarm::kEnd) end(verdict);
  }
}

void Watchdog::look_at_lines(int64_t now) {
  const FileWriterActivity lines = file_writer_activity();
  if (!lines.pending || !lines_.pending || lines.num_done != lines_.num_done) lines_since_ = now;
  lines_ = lines;
  recorder_.lines_stand(lines.pending, lines.num_done, lines_since_);
}

// Handles SIGQUIT to this rank, and dumps that request its answer.
void Watchdog::look_at_requests() {
  if (const uint32_t signals = signal_.received(); signals != signals_seen_) {
    signals_seen_ = signals;
    const auto phase = static_cast<RunPhase>(recorder_.image().phase.load());
    dumps_.claim(FlightRecorder::now() - kOneRequest, {.phase = phase}, kAnswerSeconds, kTimeoutSeconds);
  }
  const uint32_t requested = recorder_.image().dump_requested;
  const int64_t now = FlightRecorder::now();
  if (requested == requests_seen_ && now - queried_ < kQueryInterval) return;
  requests_seen_ = requested;
  queried_ = now;
  ++calls_;
  calls_.notify_all();
}

void Watchdog::answer_requests() {
  name_thread("dump answers");
  for (uint32_t call = 0;;) {
    calls_.wait(call);
    if (over_) return;
    call = calls_;
    answer(recorder_.image().dump_requested);
  }
}

// The state of the streams is recorded only in the answer to a dump, because otherwise it changes quickly.
void Watchdog::answer(uint32_t request) {
  flight::Image& image = recorder_.image();
  const MutexLock lock(streams_mutex_);
  const auto states = streams_ ? streams_() : std::vector<std::pair<std::string, StreamActivity>>();
  if (request == image.dump_answered) return;
  const size_t count = std::min<size_t>(states.size(), flight::kMaxStreams);
  for (size_t i = 0; i < count; ++i) {
    flight::StreamState& stream = image.streams[i];
    const size_t length = std::min(states[i].first.size(), sizeof stream.name - 1);
    stream.name[states[i].first.copy(stream.name, length)] = '\0';
    stream.state = static_cast<uint32_t>(states[i].second);
  }
  image.num_streams = static_cast<uint32_t>(count);
  image.dump_answered = request;
}

void Watchdog::dump(const HangClock::Verdict& verdict) {
  HangTrigger trigger = verdict.trigger;
  trigger.world_rank = job_.world_rank();
  dumps_.claim(verdict.last_progress, trigger, std::min(kAnswerSeconds, verdict.deadline / 8),
               std::min(kTimeoutSeconds, verdict.deadline / 4));
}

// Ends the job independently of the dump, which may hang.
void Watchdog::end(const HangClock::Verdict& verdict) {
  const NodeDumps::Known known = dumps_.known();
  const bool of_this_hang = known.claimed > verdict.last_progress;
  const bool speaks = of_this_hang && known.speaks;
  const double timeout = !speaks ? kSpeakerFirst : known.done ? 0 : kDumpTimeout;
  if (verdict.trigger.seconds < verdict.deadline + timeout) return;
  std::string text = fmt::format("{}: {}", field_of(verdict.trigger), no_progress(verdict.trigger));
  if (of_this_hang && !known.headline.empty()) text += ": " + known.headline;
  if (of_this_hang && !known.folder.empty()) text += "; records: " + known.folder;
  if (of_this_hang && known.folder.empty())
    text += fmt::format("; the records were not written: {}",
                        known.problem.empty() ? "storage has not accepted them yet" : known.problem);
  try {
    std::thread([this, text] { job_.fail(text, ExitCode::kWatchdog); }).detach();
    std::this_thread::sleep_for(kFailLimit);
  } catch (const std::system_error&) {  // no thread can be created
  }
  job_.end_all(ExitCode::kWatchdog);
}

}  // namespace tri
