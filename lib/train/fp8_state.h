// This rank's FP8 GEMMs as a training step sees them: the work around the optimizer, the numbers of a step on the host,
// the history of scales, and its copy in a checkpoint. Only this class knows in which order the device stores these
// numbers. Without FP8 GEMMs it is empty: it enqueues nothing and returns no numbers.
//
// Threads: call only from the training thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/model/fp8.h"

namespace tri {

class Fp8State {
 public:
  // All references outlive the state. `layers` is null without FP8 GEMMs.
  Fp8State(Device& device, Fp8Layers* layers, Stream& compute);

  // Returns the numbers that are summed over all ranks in a step: `statistics`, the first of `all`, and the counts.
  Tensor summed(const Tensor& all, const Tensor& statistics) const { return layers_ != nullptr ? all : statistics; }

  // A step calls these in this order after its last backward action; they enqueue on the compute stream.
  void count();                           // before the numbers of summed() are summed
  void reduce(GroupOnStream& world);      // then: takes the amax over all ranks (collective), and copies to the host
  void update(const Tensor& grad_scale);  // before the optimizer's update, which casts weights with the new scales
  // Returns the numbers by slot (lib/model/fp8_tensors.h) of the step, for which the caller has waited.
  std::vector<Fp8Numbers> numbers() const;
  // Call after a step with finite results.
  void finished();

  // Returns what a checkpoint stores. Waits for the compute stream.
  std::vector<float> saved_history();
  // Fails with kFile, without a change, if `saved` belongs to another model. An empty `saved` changes nothing.
  Result<void> load(const std::vector<float>& saved);

 private:
  size_t slots() const { return layers_ != nullptr ? static_cast<size_t>(layers_->tensors().slots()) : 0; }
  void read(std::span<float> to, const Tensor& from);
  // The parts of host_, in this order.
  std::span<float> scale() const { return {host_.data(), slots()}; }
  std::span<float> amax() const { return {host_.data() + slots(), slots()}; }
  std::span<float> counts() const { return {host_.data() + 2 * slots(), kNumFp8Counts * slots()}; }
  std::span<float> history() const { return {counts().data() + counts().size(), slots()}; }

  Fp8Layers* const layers_;
  Stream& compute_;
  const HostBuffer<float> host_;
};

}  // namespace tri
