// The optimizers as a table. A new one is its ops, a file with its update function, a row in optimizers.cpp that
// declares what it keeps, and a name in lib/config/kinds.h: memory, sharding, checkpoints and tests come from the row.
#pragma once

#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "lib/config/config.h"
#include "lib/optim/gradient_buckets.h"
#include "lib/optim/parameter_gathers.h"

namespace tri {

// What an optimizer's update function works with. It updates each slice's `master`, and `param` or `quantized`, by its
// `grad`, which it may overwrite, and its `state`, and publishes the slice as soon as that is enqueued. All on the
// compute stream.
struct Update {
  const OptimizerConfig& config;
  float lr;
  int64_t step;  // from 0
  const ParameterMemory& memory;
  Tensor grad_scale;                       // (1) f32: the clipping factor; NaN: nothing may change
  const std::vector<Tensor>& tensor_sums;  // [OptimizerRow::num_tensor_sums] (S) f32, whatever stands there
  ParameterGathers& gathers;
  const std::vector<AxisGroup>& groups;  // as OptimizerContext's
  GroupOnStream& dp;
  Stream& compute;

  const std::vector<BucketSlice>& slices() const { return memory.slices(); }
  Tensor decay() const { return memory.tensors().decay; }
  void publish(const BucketSlice& slice) const { gathers.publish(slice); }

  // sums (S) f32, each tensor's over this rank's slices, become the sums over all its parts, on every rank.
  void sum_over_parts(Tensor sums) const;
  // For the Adam family, whose state is the two moments.
  Moments adam_moments(const BucketSlice& slice) const;
};

struct OptimizerRow {
  OptimizerKind kind;
  // Per element, in optimizer.moments' type, starts at zero, is sharded and saved as the master weights are: names in
  // checkpoints, "optimizer/<parameter>/<name>". BucketSlice::state has them in this order.
  std::vector<std::string> state;
  int num_tensor_sums;  // Update::tensor_sums: one number a tensor, workspace
  void (*update)(const Update&);
};

const std::vector<OptimizerRow>& optimizers();
const OptimizerRow& optimizer_row(OptimizerKind kind);
// Bytes an element of all that the optimizer keeps; the master weights are not part of it.
int64_t optimizer_state_bytes(const OptimizerConfig& config);

}  // namespace tri
