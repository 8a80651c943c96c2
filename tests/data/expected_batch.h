// The tokens of one dp rank for one step, read sample by sample as BatchShape defines.
#pragma once

#include <vector>

#include "lib/data/loader.h"

namespace tri {

struct Batch {
  std::vector<int32_t> inputs;   // (M, B, T)
  std::vector<int32_t> targets;  // (M, B, T): inputs shifted by one
};

inline Batch make_batch(const Dataset& dataset, Split split, int64_t step, const BatchShape& shape) {
  Batch batch;
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.seq_len()) + 1);
  for (int m = 0; m < shape.num_microbatches(); ++m)
    for (int j = 0; j < shape.micro_batch; ++j) {
      const int64_t first = (int64_t{m} * shape.dp_size + shape.dp_rank) * shape.micro_batch;
      dataset.sample(split, step * shape.global_batch + first + j, tokens);
      batch.inputs.insert(batch.inputs.end(), tokens.begin(), tokens.end() - 1);
      batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
    }
  return batch;
}

}  // namespace tri
