// The optimizers as a table. A new one needs its ops, a file with its update function, a row in optimizers.cpp that
// declares its state, and a name in lib/config/kinds.h. Memory, sharding, checkpoints and tests derive from the row.
#pragma once

#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "lib/config/config.h"
#include "lib/optim/gradient_buckets.h"
#include "lib/optim/parameter_gathers.h"

namespace tri {

class Muon;  // muon.h

// Whether updates may run on a stream of their own, alongside the next step's forward pass (parallel.overlap_update):
// AdamW's do if no transfer and no weights stored in FP8 depend on them.
bool may_overlap_updates(const Config& config);
// Whether the forward pass of a microbatch takes long enough that such updates should leave it most of a GPU's
// multiprocessors.
bool should_leave_room(const Config& config);

// The arguments of an optimizer's update function. It updates each slice's `master`, and `param` or `quantized`, from
// its `grad`, which it may overwrite, and its `state`, and publishes the slice once that is enqueued, all on `stream`.
struct Update {
  const OptimizerConfig& config;
  float lr;
  float adamw_lr;  // of muon's other parameters (optimizer.adamw_lr)
  int64_t step;    // from 0
  const ParameterMemory& memory;
  Tensor grad_scale;                       // (1) f32: the clipping factor; NaN: nothing may change
  const std::vector<Tensor>& tensor_sums;  // [OptimizerRow::num_tensor_sums] (S) f32, not initialised
  ParameterGathers& gathers;
  const std::vector<AxisGroup>& groups;  // as in OptimizerContext
  GroupOnStream& dp;
  const std::vector<ExpertTransfers>& experts;  // as in OptimizerContext
  Muon* muon;                                   // only with optimizer.name: muon
  Stream& stream;                               // the compute stream, or if updates overlap, another one
  bool leaves_room = false;                     // the compute stream leaves room for the update

  const std::vector<BucketSlice>& slices() const { return memory.slices(); }
  Tensor decay() const { return memory.tensors().decay; }
  void publish(const BucketSlice& slice) const { gathers.publish(slice, stream); }

  // Sums `sums` (S) f32, which are over this rank's slices, over all parts of each tensor, on every rank. Collective.
  void sum_over_parts(Tensor sums) const;
  // Returns the moments of a slice, for the Adam family, whose state they are.
  Moments adam_moments(const BucketSlice& slice) const;
  // Returns the random numbers of this step for a slice's state in bf16.
  MomentRounding rounding(const BucketSlice& slice) const;
};

struct OptimizerRow {
  OptimizerKind kind;
  // Names of the state in checkpoints, "optimizer/<parameter>/<name>". Each has one element per parameter element, in
  // optimizer.moments' type; it starts at zero, and is sharded and saved like the master weights. BucketSlice::state
  // has the same order.
  std::vector<std::string> state;
  int num_tensor_sums;  // Update::tensor_sums: one number per tensor, workspace
  void (*update)(const Update&);
  // The state of the matrices that Muon updates (ParamSpec::muon), which is not longer than `state`.
  std::vector<std::string> matrix_state = {};
};

const std::vector<OptimizerRow>& optimizers();
const OptimizerRow& optimizer_row(OptimizerKind kind);
// Returns the bytes per element of the optimizer's state and of the average of the weights, without the master weights:
// of the weights of the layers' linears, and of all other parameters.
int64_t matrix_state_bytes(const OptimizerConfig& config);
int64_t optimizer_state_bytes(const OptimizerConfig& config);

}  // namespace tri
