// The routers of a model's layers with experts as a training step sees them: their loads and losses on the host, the
// update of their biases, and the biases in a checkpoint. Without such layers it is empty: it enqueues nothing and
// returns no numbers.
//
// Threads: call only from the training thread.
#pragma once

#include <vector>

#include "kernels/core/device.h"
#include "lib/model/moe.h"

namespace tri {

class RouterState {
 public:
  // `statistics`: the engine's. All references outlive the state.
  RouterState(Device& device, const MoeStatistics& statistics, float bias_rate, Stream& compute);

  bool empty() const { return statistics_.totals.empty(); }
  // Copies the totals, which the ranks have summed, to the host, and updates the biases unless their rate is 0.
  // `grad_scale` (1) f32: the clipping factor; NaN changes nothing.
  void update(const Tensor& grad_scale);
  // Returns the numbers of the step, by layer with experts, for which the caller has waited.
  std::vector<RouterNumbers> numbers() const;

  // Returns the biases as a checkpoint stores them, by layer with experts and expert; empty if there are none. Waits
  // for the compute stream.
  std::vector<float> saved_bias();
  // Fails with kFile if `saved` belongs to another model. An empty `saved` changes nothing.
  Result<void> load(const std::vector<float>& saved);

 private:
  const MoeStatistics statistics_;
  const float bias_rate_;
  Stream& compute_;
  const HostBuffer<float> host_;
};

}  // namespace tri
