// LAMB (You et al. 2020, algorithm 2): formulas in kernels/optimizer.h. State: first and second moment. A tensor's step
// is scaled by the norms of its weights and of its direction, which are summed over all ranks that hold a part of it.
#include "kernels/ops.h"
#include "lib/optim/optimizers.h"

namespace tri {

void update_lamb(const Update& u) {
  const Tensor weight_sumsq = u.tensor_sums[0], direction_sumsq = u.tensor_sums[1];
  u.stream.zero(weight_sumsq);
  u.stream.zero(direction_sumsq);
  for (const BucketSlice& slice : u.slices()) {
    tensor_sumsq({.sumsq = weight_sumsq, .inp = slice.master, .block_tensor = slice.block_tensor}, u.stream);
    lamb_direction({.moments = u.adam_moments(slice)}, u.stream);
    tensor_sumsq({.sumsq = direction_sumsq, .inp = slice.grad, .block_tensor = slice.block_tensor}, u.stream);
  }
  u.sum_over_parts(weight_sumsq);
  u.sum_over_parts(direction_sumsq);
  for (const BucketSlice& slice : u.slices()) {
    lamb_apply({.master = slice.master,
                .param = slice.param,
                .quantized = slice.quantized,
                .direction = slice.grad,
                .weight_sumsq = weight_sumsq,
                .direction_sumsq = direction_sumsq,
                .grad_scale = u.grad_scale,
                .block_tensor = slice.block_tensor,
                .decay = u.decay(),
                .lr = u.lr},
               u.stream);
    u.publish(slice);
  }
}

}  // namespace tri
