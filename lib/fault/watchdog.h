// The watchdog of a rank: reports a run that makes no progress, and then ends it.
//
// A thread checks the rank's flight recorder five times a second. After half of the phase's deadline without progress,
// it dumps the ranks of all nodes (node_dumps.h) and reports the suspect. After the full deadline it ends the job with
// status 6, even if ranks can't run any more (lib/comm/job/node_reaper.h). SIGQUIT only dumps all ranks.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/base/file_writer.h"
#include "io/base/mutex.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/fault/dump_signal.h"
#include "lib/fault/hang_clock.h"
#include "lib/fault/node_dumps.h"
#include "lib/fault/thread_stacks.h"

namespace tri {

class Watchdog {
 public:
  struct Context {
    FlightRecorder& recorder;
    Job& job;
    const FaultConfig& fault;
    std::string attempt;
    std::string run_dir;     // absolute; "": there is none, and dumps only print to stderr
    bool uses_nccl = false;  // request NCCL's report
    double step_growth = 1;  // the largest batch of a step, relative to the smallest
    // Called when a hang was located and its report written, on the rank that wrote it, on a separate thread.
    std::function<void(const DumpOutcome&)> on_report = nullptr;
  };
  // Returns this rank's streams and what they do. It may hang.
  using StreamStates = std::function<std::vector<std::pair<std::string, StreamActivity>>()>;

  explicit Watchdog(const Context& context);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Sets the function that a watchdog thread calls every second and for dumps; null: no calls. Waits for a call in
  // progress.
  void set_streams(StreamStates states);

 private:
  void watch();
  void answer_requests();
  void look_at_requests();
  void look_at_lines(int64_t now);
  void answer(uint32_t request);
  void dump(const HangClock::Verdict& verdict);
  void end(const HangClock::Verdict& verdict);

  FlightRecorder& recorder_;
  Job& job_;
  const FaultConfig fault_;
  const double step_growth_;
  const StackAnswers stacks_;
  const DumpSignal signal_;
  NodeDumps dumps_;
  uint32_t signals_seen_ = 0, requests_seen_ = 0;
  int64_t queried_ = 0;  // when the streams were queried, by FlightRecorder::now()
  FileWriterActivity lines_;
  int64_t lines_since_ = 0;  // when they last made progress

  Mutex streams_mutex_;  // held while the streams are queried
  StreamStates streams_ TRI_GUARDED_BY(streams_mutex_);
  std::atomic<uint32_t> calls_{0};  // counts queries, for the thread that makes them
  std::atomic<bool> over_{false};
  Mutex mutex_;
  ConditionVariable ended_;
  bool end_ TRI_GUARDED_BY(mutex_) = false;  // of the threads
  std::thread watcher_, answerer_;
};

}  // namespace tri
