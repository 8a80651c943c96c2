// Every rank's step times: measured by each rank, gathered on rank 0 alongside the steps, stored in run.dir/ranks.h5,
// and checked for slow ranks and for drift. If the file fails, a warning says so and training continues.
// Threads: call only from the training thread; another one writes the file.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/base/file_writer.h"
#include "io/ranks/ranks_file.h"
#include "lib/comm/groups/background_gather.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/fault/events.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/ranks/drift.h"
#include "lib/observe/ranks/stragglers.h"
#include "lib/observe/ranks/window_clock.h"
#include "lib/parallel/mesh.h"

namespace tri {

class RankMonitor {
 public:
  struct Context {
    const Config& config;  // resolved
    const Mesh& mesh;
    Job& job;
    std::string gpu;  // PCI id; "": a CPU
    const EventLog& events;
    MetricsFile* metrics = nullptr;  // on world rank 0; outlives the monitor
  };
  // Collective. With metrics.ranks_every 0 ranks measure nothing, and only rank 0's own steps are checked, for drift.
  explicit RankMonitor(const Context& context);

  // Call on every rank after each step. Never waits. `checkpoint`: a checkpoint was being written during the step.
  void step(const RankStep& step, const StepMetrics& metrics, bool checkpoint);
  // With data.document_mask, call on world rank 0 before step(): the pairs of a query and a key that attention computes
  // (AttentionPairs::band) in the samples of all ranks, `tokens` tokens, for each of attention_windows(). The FLOPs of
  // the stages count the mean of the steps until the first window has arrived.
  void add_documents(const std::vector<double>& pairs, double tokens);
  // Call after the last step: also records the incomplete window. Collective.
  void finish();
  // Returns whether storage has accepted or rejected all windows within `timeout`.
  bool flush(std::chrono::milliseconds timeout);

 private:
  class File;
  void write_window();
  void close_window();
  void take_arrived();
  void count_documents();
  void report(const StragglerNews& news, const RankWindow& window);
  void report(const Drift& drift);

  const Context context_;
  const int64_t every_;  // steps of a window; 0: no windows
  WindowClock clock_;
  int64_t first_step_ = 0, last_step_ = 0;  // of the current window
  RankWindow arriving_;                     // the window whose times are in transfer
  std::unique_ptr<BackgroundGather> gather_;
  bool under_way_ = false;
  // Only on world rank 0:
  RankMesh ranks_;
  std::shared_ptr<File> file_;          // ranks.h5, used only by its writer's thread
  std::unique_ptr<FileWriter> writer_;  // null: no window yet, or no thread
  std::vector<double> document_pairs_;  // of add_documents, until the first window has arrived
  double document_tokens_ = 0;
  std::optional<StragglerWatch> stragglers_;
  std::optional<DriftWatch> drift_{std::in_place};
  int64_t samples_ = 0, step_samples_ = 0;  // consumed by the end of the last step; of that step
};

// Returns the model FLOPs of a step for one rank of each stage, (pp): its layers, and the head on the last stage.
// `keys`: how many keys each query has on average, for each of attention_windows(); empty: those of whole samples.
std::vector<double> stage_flops(const Config& config, const Mesh& mesh, const std::vector<double>& keys = {});

// Returns the record of a window for metrics.jsonl, one object per line:
//   {"ranks":{"first_step":1,"last_step":50,"slowest":5,"host":"node07","gpu":"...","slowdown":0.012,
//             "launch_skew_ms":0.2,"mean_ms":{"forward":..,...},"stage_compute_ms":[..],"stragglers":[5]}}
// slowest: the slowest rank relative to its role; slowdown 0.1: by 10 %; mean_ms: over all ranks, by quantity.
std::string ranks_json(const RankMesh& mesh, const RankWindow& window, const std::vector<RankStraggler>& stragglers);

}  // namespace tri
