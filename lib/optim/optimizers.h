// The optimizers as a table. A new one is its ops, a file with its update function, a row in optimizers.cpp that
// declares what it keeps, and a name in lib/config/kinds.h: memory, sharding, checkpoints and tests come from the row.
#pragma once

#include <string>
#include <vector>

#include "lib/config/config.h"

namespace tri {

struct Update;  // lib/optim/update.h

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
