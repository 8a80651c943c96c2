// One rank's parts, connected: memory -> streams and groups -> parameters -> stage -> executor -> inputs. The trainer
// and the loaded model each own an engine and run steps, losses or text generation on it.
//
// Threads: call only from the training thread.
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
  // Allocates the rank's memory and connects its parts. Fills the tables that no checkpoint stores, and waits for them.
  // The weights have no values yet. Throws Fatal if memory, groups or peers' memory cannot be opened. Collective over
  // the mesh. `cache`: inference, for passes over cached sequences instead of batches.
  explicit Engine(const RankContext& rank, EngineKind kind = EngineKind::kTraining, const CacheSize& cache = {});
  // Waits for enqueued work, or cancels it while an exception unwinds.
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
  ParameterStore& store();  // training only
  // This rank's weights, [chunk][parameter]; addresses are stable.
  const std::vector<std::vector<Parameter>>& parameters() const;

  // Training only. Sets parameters, master weights and quantized weights from `config.run.seed`; the moments keep their
  // values. Waits for the values. Collective over the mesh.
  void make_start_values();
  // Training only, after a state and the FP8 history were loaded. Quantizes the master weights into the weights that
  // are stored in FP8, if there are any (keeps_fp8_weights), with the scales of the history; without a history, with
  // scales from the largest master weights. Collective over the mesh.
  void make_quantized_weights();

  // How GEMMs are split to overlap tensor-parallel transfers; the defaults until they were timed (lib/tune).
  const OverlapSplits& overlap_splits() const { return overlap_splits_; }
  // Call only between runs of a plan, with the same splits on all ranks.
  void set_overlap_splits(const OverlapSplits& splits) { overlap_splits_ = splits; }

  // Sets over how many targets of a global batch the loss of the following runs of plans is a mean: those other than
  // kNoTarget; and over how many tokens the routers' losses are means. At first both are all tokens of
  // data.global_batch samples. Without targets, 0, losses and gradients are 0. Waits for the compute stream if the
  // number of targets changes. Call it with the same numbers on all ranks.
  void set_batch(int64_t tokens, int64_t targets);

  // Throws Fatal (kUsage), alike on all ranks, if since the last Stage::begin a rank's experts had more rows than
  // memory (parallel.ep_capacity); numbers that depend on these rows are NaN. Collective over the mesh; waits for the
  // compute stream. Transfers by messages throw by themselves.
  void require_expert_memory();

  // Returns the elements of an f32 or bf16 tensor. Waits for the compute stream.
  std::vector<float> read_floats(Tensor tensor);

 private:
  void fill_tables();
  void fill_loss_weights();

  const RankContext rank_;
  // Each member refers to those above it; they are destroyed in reverse order.
  RankTensors tensors_;
  Runtime runtime_;
  std::unique_ptr<ParameterStore> store_;  // training
  std::unique_ptr<ParameterHooks> hooks_;  // the store's hooks, or those of constant weights
  OverlapSplits overlap_splits_;
  int64_t targets_;  // of a global batch
  Stage stage_;
  Executor executor_;
  BatchInputs batch_;
};

}  // namespace tri
