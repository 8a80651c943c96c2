// Trainer: one rank's part of a training step, an evaluation, a sampled token. Wires the stage, the executor, the
// parameter store and the optimizer; knows nothing of files or logs. All calls are collective over the mesh.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/timeline.h"
#include "lib/engine/rank_tensors.h"
#include "lib/infer/evaluator.h"
#include "lib/observe/startup.h"
#include "lib/train/step_statistics.h"

namespace tri {

struct StepResult {
  // The same numbers on every rank.
  double loss = 0;       // mean over the step's tokens, nats
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  StepStatistics sums;  // over all ranks
  // This rank's.
  Timeline::Times timeline;        // of the compute stream
  double pp_transfer_seconds = 0;  // what a transfer between stages takes by itself: the fastest send of the step
  bool finite() const;
};

class Trainer {
 public:
  // `arena` measures or owns the rank's memory; `config` is resolved. Before the first step, evaluation or token the
  // state comes from make_start_values(), or from outside and state_loaded().
  // `startup` (optional) times the phases; the folder `tuning_dir` (optional) keeps what searches found: gemm_tuning.h,
  // overlap_splits.h.
  Trainer(const Config& config, const Mesh& mesh, Job* job, Device& device, Arena& arena,
          StartupClock* startup = nullptr, const std::string& tuning_dir = "");
  ~Trainer();

  // `inputs`, `targets`: (M, B, T) of this dp rank, where this rank's stage takes them; best in host memory of the
  // device's kind. `told`: what this rank tells the others. A step whose result is not finite leaves parameters and
  // moments as they were.
  StepResult step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  const StepStatistics& told = {});

  void make_start_values();
  // The state's own parts were overwritten: completes what derives from them.
  void state_loaded();

  // Whether steps measure where their time goes (they do); off shows what the measuring costs.
  void time_steps(bool on) { timed_ = on; }

  // Called in every step before its update changes the state.
  void set_before_update(std::function<void()> hook) { before_update_ = std::move(hook); }

  // Losses of batches and text, with the weights as they are.
  Evaluator& evaluator() { return evaluator_; }
  double evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
    return evaluator_.evaluate(inputs, targets);
  }
  std::vector<float> next_token_logits(std::span<const int32_t> tokens) { return evaluator_.next_token_logits(tokens); }

  // After a step that was not finite: where this rank's own numbers went wrong ("gradient of layers/3/…"); may be none.
  // Passes through the step's samples again. Collective.
  std::vector<std::string> not_finite_names();

  Runtime& runtime() { return runtime_; }
  ParameterStore& store() { return store_; }
  const RankTensors& tensors() const { return tensors_; }
  void set_overlap_splits(const OverlapSplits& splits) {
    splits_ = splits;
  }  // between steps, the same on all ranks: for tests
  const Mesh& mesh() const { return mesh_; }

 private:
  const Config& config_;
  const Mesh mesh_;
  RankTensors tensors_;
  const Tensor statistics_;  // (kNumStepStatistics) f32: a StepStatistics
  Runtime runtime_;
  ParameterStore store_;
  OverlapSplits splits_;
  Stage stage_;
  Executor executor_;
  Optimizer optimizer_;
  Evaluator evaluator_;
  Timeline timeline_;
  Plan train_plan_;
  std::function<void()> before_update_;
  bool has_state_ = false;
  bool timed_ = true;
  HostBuffer<StepStatistics> h_told_, h_sums_;
  HostBuffer<float> h_norm_;
  Device& device_;
};

}  // namespace tri
