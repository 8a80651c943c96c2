// The optimizers as a table. A new one is its ops, a file with its update function, a row in optimizers.cpp that
// declares what it keeps, and a name in lib/config/kinds.h: memory, sharding, checkpoints and tests come from the row.
#pragma once

#include <string>
#include <vector>

#include "lib/config/kinds.h"

namespace tri {

struct Update;  // lib/optim/update.h

struct OptimizerRow {
  OptimizerKind kind;
  // Per element, f32, starts at zero, is sharded and saved as the master weights are: their names in checkpoints,
  // "optimizer/<parameter>/<name>". BucketSlice::state has them in this order.
  std::vector<std::string> state;
  int num_tensor_sums;  // Update::tensor_sums: one number a tensor, workspace
  void (*update)(const Update&);
};

const std::vector<OptimizerRow>& optimizers();
const OptimizerRow& optimizer_row(OptimizerKind kind);

}  // namespace tri
