#include "lib/train/timeline_recorder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <system_error>
#include <thread>

#include "io/base/log.h"
#include "io/base/mutex.h"
#include "io/base/text_file.h"
#include "io/flight_recorder/flight_recorder.h"

namespace tri {

std::string timeline_request_path(const std::string& run_dir) { return run_dir + "/trace/record"; }

// Watches the request file. If storage hangs, the thread is abandoned.
class TimelineRecorder::RequestWatch {
 public:
  explicit RequestWatch(const std::string& path) : state_(std::make_shared<State>()) {
    try {
      std::thread([state = state_, path] { run(*state, path); }).detach();
    } catch (const std::system_error& problem) {
      log_warn("{}: requests of `trireme timeline --record` are ignored, since no thread could be started: {}", path,
               problem.what());
    }
  }
  ~RequestWatch() {
    const MutexLock lock(state_->mutex);
    state_->over = true;
    state_->wake.notify_all();
  }
  RequestWatch(const RequestWatch&) = delete;
  RequestWatch& operator=(const RequestWatch&) = delete;

  int take() { return state_->steps.exchange(0); }

 private:
  struct State {
    Mutex mutex;
    ConditionVariable wake;
    bool over TRI_GUARDED_BY(mutex) = false;
    std::atomic<int> steps{0};
  };

  static void run(State& state, const std::string& path) {
    constexpr std::chrono::seconds kPeriod{1};
    const auto over = [&]() TRI_REQUIRES(state.mutex) { return state.over; };
    MutexLock lock(state.mutex);
    do {
      lock.unlock();
      const int steps = look(path);
      lock.lock();
      if (steps > 0) state.steps = steps;
    } while (!state.wake.wait_for(state.mutex, kPeriod, over));
  }

  static int look(const std::string& path) {
    const Result<std::string> text = read_text(path);
    if (!text) return 0;
    int steps = 0;
    std::istringstream words(text.value());
    const bool read = static_cast<bool>(words >> steps) && steps >= 1 && steps <= kMostRecordedSteps;
    std::remove(path.c_str());
    if (!read) log_warn("{}: expected the number of steps to record, 1 to {}", path, kMostRecordedSteps);
    return read ? steps : 0;
  }

  const std::shared_ptr<State> state_;
};

TimelineRecorder::TimelineRecorder(Engine& engine, std::string attempt, int64_t last_step)
    : engine_(engine),
      attempt_(std::move(attempt)),
      last_step_(last_step),
      wanted_(parse_step_range(engine.config().metrics.timeline)) {
  if (engine.mesh().world_rank == 0)
    requests_ = std::make_unique<RequestWatch>(timeline_request_path(engine.config().run.dir));
}

TimelineRecorder::~TimelineRecorder() = default;

int TimelineRecorder::take_request() { return requests_ ? requests_->take() : 0; }

void TimelineRecorder::schedule(int64_t next_step, int steps) {
  if (steps > 0 && recorder_ == nullptr) wanted_ = StepRange{next_step, next_step + steps - 1};
}

void TimelineRecorder::begin_step(int64_t step) {
  if (recorder_ == nullptr && wanted_ && wanted_->contains(step)) begin(step);
  if (recorder_ == nullptr) return;
  recorder_->begin_step(step, engine_.runtime().compute());
  step_ = step;
  step_began_ = FlightRecorder::now();
}

void TimelineRecorder::host_span(const char* name, int64_t begin) {
  if (recorder_ != nullptr) host_.push_back({name, step_, begin, FlightRecorder::now()});
}

void TimelineRecorder::end_step(int64_t step) {
  if (recorder_ == nullptr) return;
  host_span("step", step_began_);
  if (step == std::min(wanted_->last, last_step_)) finish(step);
}

void TimelineRecorder::begin(int64_t step) {
  first_step_ = step;
  clock_ = measure_clock_offset(*engine_.job(), engine_.job()->node_ranks().front());
  recorder_ = std::make_unique<SpanRecorder>(engine_.device(), kMostTimelineMarks);
  for (Stream* stream : engine_.runtime().streams()) recorder_->follow(*stream);
}

// Waits here, and only here, for the last step's work on streams other than compute.
void TimelineRecorder::finish(int64_t step) {
  const Mesh& mesh = engine_.mesh();
  engine_.runtime().synchronize();
  TimelineSegment segment{.world_rank = mesh.world_rank,
                          .world_size = mesh.world_size(),
                          .place = place_on_axes(mesh.grid, mesh.world_rank),
                          .host = engine_.job()->host(),
                          .gpu = engine_.device().bus_id(),
                          .attempt = attempt_,
                          .steps = {first_step_, step},
                          .clock = clock_};
  add_recording(recorder_->take(), host_, segment);
  recorder_.reset();
  host_.clear();
  wanted_.reset();
  if (mesh.world_rank == 0)
    log_info("timeline: recorded steps {} to {}; convert them with `trireme timeline {}`", segment.steps.first,
             segment.steps.last, engine_.config().run.dir);
  write(std::move(segment));
}

// The writer's thread writes the segment, so steps continue even if storage hangs.
void TimelineRecorder::write(TimelineSegment segment) {
  const std::string run_dir = engine_.config().run.dir;
  if (writer_ == nullptr) {
    auto started = FileWriter::start({.path = run_dir + "/trace",
                                      .max_bytes = size_t{256} << 20,
                                      .report = [](const std::string& message) { log_warn("timeline: {}", message); },
                                      .close_timeout = std::chrono::seconds(2)});
    if (!started) return log_warn("timeline: {}", started.error().message);
    writer_ = std::move(started).value();
  }
  const size_t bytes =
      segment.spans.size() * sizeof(segment.spans[0]) + segment.transfers.size() * sizeof(segment.transfers[0]);
  const std::string folder = timeline_folder(run_dir, segment.steps);
  writer_->post(bytes, [folder, segment = std::make_shared<const TimelineSegment>(std::move(segment))] {
    return write_segment(folder, *segment);
  });
}

}  // namespace tri
