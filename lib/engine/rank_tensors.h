// All device memory of a rank in one place: what a run reserves and what `trireme check` predicts.
#pragma once

#include "lib/model/stage_tensors.h"
#include "lib/optim/optimizer.h"
#include "lib/schedule/executor.h"

namespace tri {

// Returns the microbatches of one step in every pipeline; of the largest one with data.batch_ramp.
int microbatches(const Config& config);
// The same of a step of `samples` samples.
int microbatches(const Config& config, int samples);

// Takes the workspace of kernels and libraries: Device::workspace_bytes() of the arena's device, or those of the absent
// GPU if the arena measures without a device. Returns an absent tensor if they need none, as on the CPU.
Tensor take_kernel_workspace(const Config& config, const Mesh& mesh, Arena& arena);

// Return the plan of this stage of the schedule, or of forward passes alone, with transfers.
Plan train_plan(const Config& config, Axis pp, int num_microbatches);
Plan evaluation_plan(const Config& config, Axis pp, int num_microbatches);

// How a rank's memory is used: for training steps, or only for forward passes with constant weights.
enum class EngineKind { kTraining, kInference };
// The size of lib/train/step_statistics.h, and the index of the loss in it.
inline constexpr int kMaxStepStatistics = 16, kLossStatistic = 1;

struct RankTensors {
  StageTensors stage;
  BoundaryTensors boundaries;
  StoreTensors store;          // training: weights, gradients, moments
  OptimizerTensors optimizer;  // training
  // Training; f32: numbers that ranks sum in a step: kMaxStepStatistics, then stage.fp8.float_counts, then
  // stage.experts.totals.
  Tensor step_statistics;
  std::vector<std::vector<Parameter>> weights;  // inference, [chunk][parameter]
  Tensor loss;         // (1) f32: the mean loss of a batch; in training an element of step_statistics
  Tensor loss_weight;  // (M) f32: 1 / tokens of a step if this rank's losses count, else 0; last stage only
  // Compute dtype: a row of logits per sequence, gathered over tp; (tp · N · Vl) with N = max(1, S rounded up to a
  // multiple of tp); last stage only.
  Tensor sample_logits;
  Tensor sample_tokens;     // (max(1, S)) i32
  Tensor kernel_workspace;  // bytes as i32; CUDA only: lent to the kernels and libraries
};

// `config` must be resolved. A measuring arena is not written to.
RankTensors allocate_rank(const Config& config, const Mesh& mesh, Arena& arena, EngineKind kind = EngineKind::kTraining,
                          const CacheSize& cache = {});
// Returns the bytes that allocate_rank takes on `device`.
int64_t rank_bytes(const Config& config, const Mesh& mesh, Device& device, EngineKind kind = EngineKind::kTraining,
                   const CacheSize& cache = {});

// Returns the bytes of a rank's arena, given `free` bytes, which on the CPU the `node_size` ranks of a machine share.
// The rest is left to communicators and libraries; on the CPU to the start values, MPI and the system.
int64_t room_for_arena(DeviceKind kind, int64_t free, int node_size);

// Returns the first of none, norms and selective with which allocate_rank's memory fits into `available` bytes on this
// rank, else full. Measured without a device, for `gpu`. Ranks may differ; a job uses the one that saves most memory.
Recompute least_recompute(const Config& config, const Mesh& mesh, int64_t available, const GpuProperties& gpu = {});

}  // namespace tri
