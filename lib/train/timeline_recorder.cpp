#include "lib/train/timeline_recorder.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>

#include "io/base/log.h"
#include "io/black_box/black_box.h"

namespace tri {

std::string timeline_request_path(const std::string& run_dir) { return run_dir + "/trace/record"; }

// Writes pieces beside the steps, one after the other. Storage may hang: the end of the run waits for seconds, not for
// ever.
class TimelineRecorder::Writer {
 public:
  Writer(std::string folder, TimelinePiece piece) : state_(std::make_shared<State>()) {
    std::thread([state = state_, folder = std::move(folder), piece = std::move(piece)] {
      if (const auto written = write_piece(folder, piece); !written)
        log_warn("timeline: {}; training goes on", written.error().message);
      const std::lock_guard lock(state->mutex);
      state->done = true;
      state->wake.notify_all();
    }).detach();
  }
  ~Writer() {
    constexpr std::chrono::seconds kPatience{10};
    std::unique_lock lock(state_->mutex);
    if (!state_->wake.wait_for(lock, kPatience, [&] { return state_->done; }))
      log_warn("timeline: storage does not take it; given up");
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable wake;
    bool done = false;
  };
  std::shared_ptr<State> state_;
};

TimelineRecorder::TimelineRecorder(const Context& context)
    : context_(context), wanted_(parse_step_range(context.config.metrics.timeline)) {}

TimelineRecorder::~TimelineRecorder() = default;

int TimelineRecorder::asked() {
  constexpr std::chrono::seconds kPeriod{1};
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kPeriod) return 0;
  looked_ = now;
  const std::string path = timeline_request_path(context_.config.run.dir);
  std::ifstream file(path);
  if (!file) return 0;
  int steps = 0;
  const bool read = static_cast<bool>(file >> steps) && steps >= 1 && steps <= kMostRecordedSteps;
  std::remove(path.c_str());
  if (!read) log_warn("{}: the number of steps to record, 1 to {}, is expected", path, kMostRecordedSteps);
  return read ? steps : 0;
}

void TimelineRecorder::ask(int64_t next_step, int steps) {
  if (steps > 0 && recorder_ == nullptr) wanted_ = StepRange{next_step, next_step + steps - 1};
}

void TimelineRecorder::begin_step(int64_t step) {
  if (recorder_ == nullptr && wanted_ && wanted_->contains(step)) begin(step);
  if (recorder_ == nullptr) return;
  recorder_->begin_step(step, context_.runtime.compute());
  step_ = step;
  step_began_ = BlackBox::now();
}

void TimelineRecorder::host_span(const char* name, int64_t begin) {
  if (recorder_ != nullptr) host_.push_back({name, step_, begin, BlackBox::now()});
}

void TimelineRecorder::end_step(int64_t step) {
  if (recorder_ == nullptr) return;
  host_span("step", step_began_);
  if (step == std::min(wanted_->last, context_.config.run.steps)) finish(step);
}

void TimelineRecorder::begin(int64_t step) {
  first_step_ = step;
  clock_ = measure_clock_offset(context_.job, context_.job.node_ranks().front());
  recorder_ = std::make_unique<SpanRecorder>(context_.device, kMostTimelineMarks);
  for (Stream* stream : context_.runtime.streams()) recorder_->follow(*stream);
}

// The only wait: for what the last step has left on other streams than compute's.
void TimelineRecorder::finish(int64_t step) {
  const Mesh& mesh = context_.mesh;
  context_.runtime.synchronize();
  TimelinePiece piece{.world_rank = mesh.world_rank,
                      .world_size = mesh.world_size(),
                      .pp_rank = mesh.pp.rank,
                      .dp_rank = mesh.dp.rank,
                      .tp_rank = mesh.tp.rank,
                      .host = context_.job.host(),
                      .gpu = context_.device.bus_id(),
                      .attempt = context_.attempt,
                      .steps = {first_step_, step},
                      .clock = clock_};
  add_recording(recorder_->take(), host_, piece);
  recorder_.reset();
  host_.clear();
  wanted_.reset();
  if (mesh.world_rank == 0)
    log_info("timeline: steps {} to {} are recorded; see them by `trireme timeline {}`", piece.steps.first,
             piece.steps.last, context_.config.run.dir);
  const std::string folder = timeline_folder(context_.config.run.dir, piece.steps);
  writer_.reset();
  writer_ = std::make_unique<Writer>(folder, std::move(piece));
}

}  // namespace tri
