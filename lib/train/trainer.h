// Trainer: one rank's part of a training step, an evaluation, a sampled token. Wires the stage, the executor, the
// parameter store and the optimizer; knows nothing of files or logs. All calls are collective over the mesh.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/model/stage.h"
#include "lib/observe/startup.h"
#include "lib/train/rank_tensors.h"
#include "lib/train/runtime.h"

namespace tri {

struct StepResult {
  double loss = 0;       // mean over the step's tokens, nats
  double grad_norm = 0;  // global, before clipping
  double learning_rate = 0;
  // The same numbers on every rank.
  int stop = 0, saved = 0, failed = 0;   // ranks whose flag was set
  double stop_age = 0, time_needed = 0;  // mean over the ranks that were asked to stop; rank 0's
  bool finite() const;
};

class Trainer {
 public:
  // `arena` measures or owns the rank's memory; `config` is resolved. Parameters are initialised.
  // `startup` (optional) times the phases; `gemm_file` (optional) keeps the choices of matrix products: gemm_tuning.h.
  Trainer(const Config& config, const Mesh& mesh, Job* job, Device& device, Arena& arena,
          StartupClock* startup = nullptr, const std::string& gemm_file = "");
  ~Trainer();

  // `inputs`, `targets`: (M, B, T) of this dp rank. A result that is not finite leaves the parameters unusable.
  StepResult step(int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  RankFlags flags = {});

  // Called in every step before its update changes the state.
  void set_before_update(std::function<void()> hook) { before_update_ = std::move(hook); }
  // The state's own parts were overwritten: completes what derives from them.
  void state_loaded() { store_.state_loaded(); }

  // Mean loss over one batch shaped like a step's.
  double evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets);

  // Logits of the token after `tokens` (1 <= size <= T), on the ranks of the last stage; empty elsewhere.
  std::vector<float> next_token_logits(std::span<const int32_t> tokens);
  // The token that world rank `root` holds, on all ranks.
  int32_t broadcast_token(int32_t token, int root);

  // After a step that was not finite: where this rank's own numbers went wrong ("gradient of layers/3/…"); may be none.
  std::vector<std::string> not_finite_names();

  Runtime& runtime() { return runtime_; }
  ParameterStore& store() { return store_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  void load_tokens(std::span<const int32_t> inputs, std::span<const int32_t> targets);
  // Enqueues stats[kStatLoss] = this rank's share of the mean loss.
  void sum_losses();
  std::vector<float> read(Tensor tensor);  // as floats; waits

  const Config& config_;
  const Mesh mesh_;
  RankTensors tensors_;
  Runtime runtime_;
  ParameterStore store_;
  Stage stage_;
  Executor executor_;
  Optimizer optimizer_;
  Plan train_plan_, evaluation_plan_, single_plan_;
  std::function<void()> before_update_;
  HostBuffer<int32_t> h_inputs_, h_targets_;  // stay put until the device has copied them
  HostBuffer<float> h_flags_, h_stats_;       // a step's flags, its statistics and norm
  Device& device_;
};

}  // namespace tri
