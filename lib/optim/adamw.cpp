// AdamW (Loshchilov & Hutter 2019): formulas in kernels/optimizer.h. State: first and second moment.
#include "kernels/ops.h"
#include "lib/optim/optimizers.h"

namespace tri {

void update_adamw(const Update& u) {
  for (const BucketSlice& slice : u.slices()) {
    // The forward pass waits for the parameters that it uses first.
    adamw_update({.moments = u.adam_moments(slice),
                  .param = slice.param,
                  .quantized = slice.quantized,
                  .lr = u.lr,
                  .alongside = u.leaves_room && slice.used_late},
                 u.stream);
    u.publish(slice);
  }
}

}  // namespace tri
