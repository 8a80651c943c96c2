// The steps of a run and what happens between them: checkpoints, evaluations, samples, figures, and the response to
// stop signals.
//
// Threads: call only from the training thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "io/base/progress.h"
#include "lib/checkpoint/checkpointer.h"
#include "lib/checkpoint/memory.h"
#include "lib/fault/events.h"
#include "lib/fault/stop_deadline.h"
#include "lib/fault/stop_signals.h"
#include "lib/infer/evaluator.h"
#include "lib/observe/metrics/exporters.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/metrics/sensor_watch.h"
#include "lib/observe/metrics/startup.h"
#include "lib/observe/ranks/rank_monitor.h"
#include "lib/observe/status/effective_time.h"
#include "lib/observe/status/expert_report.h"
#include "lib/train/document_work.h"
#include "lib/train/inputs.h"
#include "lib/train/node_loader.h"
#include "lib/train/spikes.h"
#include "lib/train/timeline_recorder.h"
#include "lib/train/trainer.h"

namespace tri {

// What a loop needs in addition to the trainer's RankContext. All references outlive the loop.
struct LoopContext {
  const Inputs& inputs;
  Trainer& trainer;  // its state is initialized, and it has a job
  Checkpointer& checkpoints;
  MemoryCheckpoints* memory = nullptr;  // null: checkpoint.memory_every is 0
  RunProgress begun;                    // the progress of that state
  StartupClock& startup;                // reports after the first step
  const EventLog& events;               // receives the spans of time that are not steps
  const StopSignals& signals;
  StopDeadline& stop_deadline;
};

class TrainingLoop {
 public:
  // Collective: the ranks of a node share their loader, and all ranks report their times to rank 0.
  explicit TrainingLoop(const LoopContext& context);

  // Trains until config.run.steps or run.tokens, or until a signal stops it, and ends with a summary. Fails, with the
  // same error on all ranks, on a step that is not finite, on failed checkpoints, and on a stop (kDrained). Collective.
  Result<void> run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stop {
    kNo,
    kSave,   // after one more checkpoint
    kLeave,  // there is no time for another checkpoint: only finish the one in progress
  };

  // What an evaluation reads: the run's own validation samples (name ""), then each file of data.validation.
  struct Validation {
    std::string name;
    LoaderPart part;
    EvaluationSize size;
    bool warned = false;  // that its samples have no targets
  };
  static std::vector<Validation> validations_of(const Config& config, const Inputs& inputs);
  // The largest number of targets that a sum in f32 counts exactly.
  static constexpr int64_t kExactTargets = int64_t{1} << 24;

  Result<void> train_step();
  StepStatistics local_statistics(int steps_to_record, int last_samples) const;
  StepMetrics metrics_of(const StepResult& result, double seconds, const StepTimes& times, int64_t data_bytes);
  void show(const StepMetrics& metrics, const StepResult& result);
  std::string show_experts(int64_t step, const StepResult& result);
  Result<void> after_not_finite(const StepMetrics& metrics);
  void after_spike(const StepMetrics& metrics, const StepLimits& limits);
  void after_no_targets(const StepMetrics& metrics);
  std::optional<int64_t> targets_of(const StepTokens& tokens);
  StepResult run_step(const StepPlace& place, const StepTokens& tokens, const StepStatistics& local, StepLimits limits);
  bool counts_ahead() const;
  float next_targets();
  Stop answer_to_signal(const StepResult& result, Clock::time_point sent_at);

  Job& job() const { return *rank_.job; }
  bool is_last() const { return progress_.steps == last_step_; }
  bool is_checkpoint_due() const { return is_due(rank_.config.checkpoint.every) || save_due_; }
  bool is_due(int64_t every) const { return is_last() || (every > 0 && progress_.steps % every == 0); }
  bool is_memory_due() const;
  void note_state();
  void settle_memory();
  void save_in_memory();
  void report_checkpoints();
  void account(WallTime what, Clock::time_point since) const;
  void flush_shown_files();
  void evaluate();
  void sample();
  Result<void> finish(Clock::time_point start);

  const LoopContext context_;
  const BatchSizes sizes_;   // of the steps
  const int64_t last_step_;  // after which the run ends
  const RankContext& rank_;  // the trainer's
  NodeLoader loader_;
  std::optional<DocumentWork> documents_;          // with data.document_mask
  Evaluator evaluator_;                            // on the trainer's engine, for evaluations and samples
  std::vector<Validation> validations_;            // of an evaluation, in this order; empty: there are none
  std::unique_ptr<NodeLoader> validation_loader_;  // evaluations are sequential: it has read the next one's batches
  RunProgress progress_;                           // of the run, including the step in progress
  Stop stop_ = Stop::kNo;
  Clock::time_point saved_at_ = Clock::now();  // when the last checkpoint began, or the loop
  bool save_due_ = false;  // every_minutes have passed: save after the step in progress; the same on all ranks
  SpikeWindow spikes_;
  const bool has_masks_, counts_targets_;  // targets of steps are masked; this rank counts its own
  std::optional<int64_t> next_targets_;    // with masks: of the next step, of all ranks; none: not known yet
  int64_t skipped_spikes_ = 0, skipped_without_targets_ = 0;
  int64_t skipped_ = 0, skipped_in_a_row_ = 0;  // steps that were not finite
  double step_seconds_ = 0;                     // of the last step
  int step_samples_ = 0;                        // of the step in progress, or else of the last one
  StepTimes times_;                             // of all steps
  std::unique_ptr<MetricsFile> metrics_;        // world rank 0
  RankMonitor ranks_;                           // declared after the metrics, into which it writes
  std::optional<Clock::time_point> step_end_;   // of the previous step; none: something happened in between
  TimelineRecorder timeline_;
  std::unique_ptr<Exporters> exporters_;  // world rank 0
  std::unique_ptr<SensorWatch> gpu_;      // world rank 0, if it has a GPU
  ExpertWatch expert_watch_;              // world rank 0
  ProgressLine progress_line_;
};

}  // namespace tri
