// Every rank's times, always on: measured by each rank, gathered on rank 0 alongside the steps, kept in
// run.dir/ranks.h5, and looked through for slow ranks and for drift.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/base/file_writer.h"
#include "io/ranks/ranks_file.h"
#include "lib/comm/background_gather.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/fault/events.h"
#include "lib/observe/drift.h"
#include "lib/observe/metrics.h"
#include "lib/observe/stragglers.h"
#include "lib/observe/window_clock.h"
#include "lib/parallel/mesh.h"

namespace tri {

class RankMonitor {
 public:
  struct Context {
    const Config& config;  // resolved
    const Mesh& mesh;
    Job& job;
    std::string gpu;  // its PCI id; "": a CPU
    const EventLog& events;
    MetricsFile* metrics = nullptr;  // of world rank 0; outlives the monitor
  };
  // Collective. With metrics.ranks_every 0 ranks measure nothing: rank 0's own steps are searched for drift alone.
  explicit RankMonitor(const Context& context);

  // Call on every rank after each step. Never waits. `checkpoint`: a checkpoint was being written during the step.
  void step(const RankStep& step, const StepMetrics& metrics, bool checkpoint);
  // After the last step: the window that is not full, too. Collective.
  void finish();
  // Whether storage has taken, or refused, all windows, within `timeout`.
  bool flush(std::chrono::milliseconds timeout);

 private:
  class File;
  void write_window();
  void close_window();
  void take_arrived();
  void tell(const StragglerNews& news, const RankWindow& window);
  void tell(const Drift& drift);

  const Context context_;
  const int64_t every_;  // steps of a window; 0: none
  WindowClock clock_;
  int64_t first_step_ = 0, last_step_ = 0;  // of the window under way
  RankWindow arriving_;                     // of which the times are on their way
  std::unique_ptr<BackgroundGather> gather_;
  bool under_way_ = false;
  // World rank 0's.
  RankMesh ranks_;
  std::shared_ptr<File> file_;          // ranks.h5, used by its writer's thread alone
  std::unique_ptr<FileWriter> writer_;  // null: there was no window yet, or no thread
  std::optional<StragglerWatch> stragglers_;
  DriftWatch drift_;
};

// What metrics.jsonl says of a window, one object in a line:
//   {"ranks":{"first_step":1,"last_step":50,"slowest":5,"host":"node07","gpu":"...","slowdown":0.012,
//             "launch_skew_ms":0.2,"mean_ms":{"forward":..,...},"stage_compute_ms":[..],"stragglers":[5]}}
// slowest: the rank that is slowest against its role, slowdown 0.1: by 10 %; mean_ms: over all ranks, by quantity.
std::string ranks_json(const RankMesh& mesh, const RankWindow& window, const std::vector<RankStraggler>& stragglers);

}  // namespace tri
