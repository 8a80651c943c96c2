// All device memory of a rank, in one place: what a run reserves and what `trireme check` predicts.
#pragma once

#include "lib/model/stage_tensors.h"
#include "lib/optim/optimizer.h"
#include "lib/schedule/executor.h"

namespace tri {

// Microbatches of one step on every pipeline.
int microbatches(const Config& config);

// What kernels and libraries take in addition to their operands, as Device::workspace_bytes() says for the arena's
// device; for one that measures without a device as its absent GPU would. Absent where it is nothing: on the CPU.
Tensor take_kernel_workspace(const Config& config, const Mesh& mesh, Arena& arena);

// The schedule's plan of this stage, with transfers.
Plan train_plan(const Config& config, Axis pp);
Plan evaluation_plan(const Config& config, Axis pp, int num_microbatches);

// What a rank's memory is for: steps of training, or forward passes alone with weights that never change.
enum class EngineKind { kTraining, kInference };
// Room for lib/train/step_statistics.h, and the place of the loss in it.
inline constexpr int kMaxStepStatistics = 16, kLossStatistic = 1;

struct RankTensors {
  StageTensors stage;
  BoundaryTensors boundaries;
  StoreTensors store;          // training: weights, gradients, moments
  OptimizerTensors optimizer;  // training
  // Training; f32: numbers that ranks sum in a step, kMaxStepStatistics and, behind them, stage.fp8.float_counts.
  Tensor step_statistics;
  std::vector<std::vector<Parameter>> weights;  // inference, [chunk][parameter]
  Tensor loss;                                  // (1) f32: the mean loss of a batch; in training one of step_statistics
  Tensor loss_weight;       // (M) f32: 1 / tokens of a step where this rank's losses count, else 0; last stage only
  Tensor sample_logits;     // (V) compute dtype: one row of logits, gathered over tp; last stage only
  Tensor sample_token;      // (1) i32
  Tensor kernel_workspace;  // bytes as i32; cuda only: lent to the kernels and libraries
};

// `config` resolved. On a measuring arena nothing is touched.
RankTensors allocate_rank(const Config& config, const Mesh& mesh, Arena& arena,
                          EngineKind kind = EngineKind::kTraining);
// What it takes on `device`, measured.
int64_t rank_bytes(const Config& config, const Mesh& mesh, Device& device, EngineKind kind = EngineKind::kTraining);

// Bytes that a rank's arena may take of `free` bytes, which on the CPU the `node_size` ranks of a machine share.
// The rest is for communicators and libraries; on the CPU for the start values, MPI and the system.
int64_t room_for_arena(DeviceKind kind, int64_t free, int node_size);

// The first of none, norms, selective with which allocate_rank's memory stays within `room` bytes on this rank,
// measured without a device, for such a GPU; else full. Ranks may differ; a job takes the one that spares most.
Recompute least_recompute(const Config& config, const Mesh& mesh, int64_t room, const GpuProperties& gpu = {});

}  // namespace tri
