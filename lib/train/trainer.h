// Trainer: one rank's part of a training step. An engine with an optimizer; knows nothing of files or logs. All calls
// are collective over the mesh.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/timeline.h"
#include "lib/engine/engine.h"
#include "lib/observe/startup.h"
#include "lib/train/fp8_state.h"
#include "lib/train/step_statistics.h"

namespace tri {

struct StepResult {
  // The same numbers on every rank.
  double loss = 0;       // mean over the step's tokens, nats
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  StepStatistics sums;          // over all ranks
  std::vector<Fp8Numbers> fp8;  // by slot (lib/model/fp8_tensors.h), over all ranks; empty without FP8 GEMMs
  // This rank's.
  Timeline::Times timeline;        // of the compute stream
  double pp_transfer_seconds = 0;  // what a transfer between stages takes by itself: the fastest send of the step
  bool finite() const;
};

// Whether steps measure where their time goes.
enum class StepTiming { kOn, kOff };

struct TrainerOptions {
  StartupClock* startup = nullptr;  // used by the constructor only, to time its phases; may be null
  std::string tuning_dir;           // folder that keeps what searches found: gemm_tuning.h, overlap_splits.h; "": none
  StepTiming timing = StepTiming::kOn;
};

// Owns the engine, the optimizer, the host's copies of a step's numbers and the state of FP8. What the rank's context
// refers to outlives it. Only the thread that trains may call it; Runtime says which of its functions other threads may
// call.
class Trainer {
 public:
  // Before the first step the state comes from make_start_values(), or from outside and state_loaded().
  explicit Trainer(const RankContext& rank, const TrainerOptions& options = {});
  ~Trainer();

  // `inputs`, `targets`: (M, B, T) of this dp rank, where this rank's stage takes them; best in host memory of the
  // device's kind. `local`: the statistics of this rank, which are summed over all ranks. `before_update` is called
  // once, before what changes the state is enqueued. A step whose result is not finite leaves parameters and moments as
  // they were.
  StepResult step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  const StepStatistics& local = {}, const std::function<void()>& before_update = nullptr);

  void make_start_values();
  // This rank's part of the state was overwritten: completes what derives from it. `fp8_history`: the checkpoint's
  // (RunProgress); without one the next step makes it. Error: it is none of this model's.
  Result<void> state_loaded(const std::vector<float>& fp8_history = {});
  // What a checkpoint stores of FP8 GEMMs (Fp8State::saved_history); empty without them. Call it between steps: it
  // waits for a copy from the device, which steps therefore need not make.
  std::vector<float> fp8_history();

  // After a step that was not finite: where this rank's own numbers went wrong ("gradient of layers/3/…"); may be none.
  // Passes through the step's samples again. Collective.
  std::vector<std::string> not_finite_names();

  Engine& engine() { return engine_; }
  Runtime& runtime() { return engine_.runtime(); }
  ParameterStore& store() { return engine_.store(); }

 private:
  void run_plan();  // forwards and backwards of a step

  Engine engine_;
  const Tensor statistics_;  // (kNumStepStatistics) f32: a StepStatistics
  Optimizer optimizer_;
  Timeline timeline_;
  const Plan plan_;
  const StepTiming timing_;
  bool has_state_ = false;
  HostBuffer<StepStatistics> h_statistics_, h_sums_;
  HostBuffer<float> h_norm_;
  std::optional<Fp8State> fp8_;  // with FP8 GEMMs
};

}  // namespace tri
