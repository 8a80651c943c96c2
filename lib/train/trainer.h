// Trainer: one rank's part of a training step. It consists of an engine and an optimizer and has no files or logs.
//
// Threads: all calls are collective over the mesh and come from the training thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/timeline.h"
#include "lib/config/batch_sizes.h"
#include "lib/engine/engine.h"
#include "lib/observe/metrics/startup.h"
#include "lib/optim/lr.h"
#include "lib/train/fp8_state.h"
#include "lib/train/router_state.h"
#include "lib/train/step_statistics.h"

namespace tri {

// Where a step is in its run. Its size follows from it (lib/config/batch_sizes.h).
struct StepPlace {
  int64_t step = 0;          // completed steps before it
  int64_t first_sample = 0;  // consumed samples before it
  // Targets other than kNoTarget in the whole global batch, over which loss and gradients are means; none: all tokens.
  std::optional<int64_t> targets = std::nullopt;
  // With data.document_mask: where the document of each of this dp rank's tokens starts in its sample, (M, B, T);
  // empty: each sample is one document.
  std::span<const int32_t> document_starts = {};
};

struct StepResult {
  // The same numbers on every rank.
  double loss = 0;       // mean over the step's targets, nats
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  StepStatistics sums;                 // over all ranks
  std::vector<Fp8Numbers> fp8;         // by slot (lib/model/fp8_tensors.h), over all ranks; empty without FP8 GEMMs
  std::vector<RouterNumbers> routers;  // by layer with experts, over all ranks
  // Of this rank:
  Timeline::Times timeline;        // of the compute stream
  double pp_transfer_seconds = 0;  // the time of a transfer between stages by itself: the fastest send of the step
  bool is_spike = false;           // the step exceeded its limits, or had no targets
  bool finite() const;
};

// Whether steps measure where their time goes.
enum class StepTiming { kOn, kOff };

// When the work of a step ends that changes the state. kNextStep: it may overlap with the next step; before anything
// but a step or an evaluation reads the state, call finish_update().
enum class UpdateEnd { kStep, kNextStep };

struct TrainerOptions {
  StartupClock* startup = nullptr;  // used by the constructor only, to time its phases; may be null
  std::string tuning_dir;           // folder for the results of autotuning: gemm_tuning.h, overlap_splits.h; "": none
  StepTiming timing = StepTiming::kOn;
  UpdateEnd update = UpdateEnd::kStep;
};

// Owns the engine, the optimizer, the host's copies of a step's numbers and the state of FP8. The references in the
// rank's context outlive it. Runtime lists its functions that other threads may call.
class Trainer {
 public:
  // Before the first step, call make_start_values(), or set the state from outside and call state_loaded().
  explicit Trainer(const RankContext& rank, const TrainerOptions& options = {});
  ~Trainer();

  // Runs the step at `place`. `inputs`, `targets`: (M, B, T) of this dp rank if this rank's stage needs them, ideally
  // in host memory of the device's kind. `local`: this rank's statistics, which are summed over all ranks. Calls
  // `before_update` once, before the work that changes the state is enqueued. A step whose result is not finite, or
  // exceeds `limits` (the same on all ranks), leaves parameters and moments unchanged, like one without targets, whose
  // loss is 0.
  StepResult step(const StepPlace& place, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  const StepStatistics& local = {}, const std::function<void()>& before_update = nullptr,
                  StepLimits limits = {});
  // The same for step `step` of a run whose steps all have data.global_batch samples.
  StepResult step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  const StepStatistics& local = {}, const std::function<void()>& before_update = nullptr,
                  StepLimits limits = {});

  // Whether load_kernels() has to be called before the first step. The driver loads a kernel when it is first launched,
  // and the host then waits for the device's work, transfers between stages included. In a pipeline these may depend on
  // actions that the host has not enqueued yet, so that ranks could wait forever: with zb_v always, with the other
  // schedules where a later microbatch needs a kernel that the first one did not.
  bool must_load_kernels() const;
  // Runs two microbatches of a step, without transfers between stages, and the sums over ranks at its end, so that all
  // kernels of its plan are loaded, and those of an evaluation. Needs a state, which it does not change: a step starts
  // with its own numbers. Waits for the work. Needs several stages. Collective over the mesh.
  void load_kernels();

  // The compute stream waits for the last step's update.
  void finish_update() { store().gathers.finish_updates(); }

  void make_start_values();
  // Call after this rank's part of the state was overwritten: completes the data derived from it. `fp8_history`: the
  // checkpoint's (RunProgress); without one the next step creates it. Fails with kFile if it belongs to another model.
  // `router_bias`: the same.
  Result<void> state_loaded(const std::vector<float>& fp8_history = {}, const std::vector<float>& router_bias = {});
  // Returns what a checkpoint stores of FP8 GEMMs (Fp8State::saved_history); empty without them. Call between steps: it
  // waits for a copy from the device, so that steps need not make one.
  std::vector<float> fp8_history();
  std::vector<float> router_bias() { return routers_.saved_bias(); }  // the same of the routers' biases

  // Call after a step that was not finite: returns where this rank's own numbers were not finite ("gradient of
  // layers/3/…"); may be empty. Processes the step's samples again. Collective.
  std::vector<std::string> not_finite_names();

  Engine& engine() { return engine_; }
  Runtime& runtime() { return engine_.runtime(); }
  ParameterStore& store() { return engine_.store(); }

 private:
  StepResult run_step(const StepPosition& position, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                      std::span<const int32_t> document_starts, const StepStatistics& local,
                      const std::function<void()>& before_update, StepLimits limits);
  // Of the following steps: samples, and targets (StepPlace::targets).
  void set_batch(int samples, std::optional<int64_t> targets);
  void begin_plan();
  void run_plan();  // the forward and backward actions of a step

  Engine engine_;
  const BatchSizes sizes_;
  const Tensor statistics_;  // (kNumStepStatistics) f32: a StepStatistics
  Fp8State fp8_;
  RouterState routers_;
  Optimizer optimizer_;
  Timeline timeline_;
  std::map<int, Plan> plans_;   // by microbatches of a step
  const Plan* plan_ = nullptr;  // of the last step
  const StepTiming timing_;
  const UpdateOrder order_;
  bool has_state_ = false;
  HostBuffer<StepStatistics> h_statistics_, h_sums_;
  HostBuffer<float> h_norm_;
};

}  // namespace tri
