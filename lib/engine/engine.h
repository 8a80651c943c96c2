// One rank, wired: memory -> streams and groups -> parameters -> stage -> executor -> inputs. The trainer and the
// loaded model each own one; what they do with it (a step, a batch's loss, text) is theirs.
#pragma once

#include <memory>
#include <vector>

#include "lib/engine/batch_inputs.h"
#include "lib/engine/rank_context.h"
#include "lib/engine/rank_tensors.h"
#include "lib/engine/runtime.h"
#include "lib/model/stage.h"
#include "lib/optim/parameter_store.h"

namespace tri {

class Engine {
 public:
  // Allocates the rank's memory and wires it; opens groups and peers' memory: collective over the mesh. Fills the
  // tables that no checkpoint holds, and waits for them. The weights have no values yet.
  explicit Engine(const RankContext& rank, EngineKind kind = EngineKind::kTraining);
  // Waits for the work under way, or makes it give up where an exception is unwinding.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RankContext& rank() const { return rank_; }
  const Config& config() const { return rank_.config; }
  const Mesh& mesh() const { return rank_.mesh; }
  Job* job() const { return rank_.job; }
  Device& device() const { return rank_.device; }
  const RankTensors& tensors() const { return tensors_; }
  Runtime& runtime() { return runtime_; }
  Stage& stage() { return stage_; }
  Executor& executor() { return executor_; }
  BatchInputs& batch() { return batch_; }
  ParameterStore& store();  // of an engine for training
  // This rank's weights, [chunk][parameter]; addresses are stable.
  const std::vector<std::vector<Parameter>>& parameters() const;

  // For training: parameters, master weights and quantized values from `config.run.seed`; moments stay as they are.
  // Waits for the values. Collective over the mesh.
  void make_start_values();
  // For training, after a state and FP8's history were loaded: the weights that are kept in FP8, where any are
  // (keeps_fp8_weights). Made of the master weights, with the scales of the history, or without one with those of the
  // largest master weights. Collective over the mesh.
  void make_quantized_weights();

  // How GEMMs are split alongside tensor-parallel transfers; the default until something was timed (lib/tune).
  const OverlapSplits& overlap_splits() const { return overlap_splits_; }
  // Between runs of a plan; the same on all ranks.
  void set_overlap_splits(const OverlapSplits& splits) { overlap_splits_ = splits; }

  // The numbers of a tensor of f32 or bf16. Waits for the compute stream.
  std::vector<float> read_floats(Tensor tensor);

 private:
  void fill_tables();

  const RankContext rank_;
  // Each refers to those above it, and they go in the opposite order.
  RankTensors tensors_;
  Runtime runtime_;
  std::unique_ptr<ParameterStore> store_;  // training
  std::unique_ptr<ParameterHooks> hooks_;  // of the store, or of weights that never change
  OverlapSplits overlap_splits_;
  Stage stage_;
  Executor executor_;
  BatchInputs batch_;
};

}  // namespace tri
