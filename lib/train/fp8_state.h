// The host's data on this rank's FP8 GEMMs: the numbers of a step, the history of scales, and its copy in a checkpoint.
// The only owner of the layout in which they are read from the device.
//
// Threads: call only from the rank's main thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/model/fp8.h"

namespace tri {

class Fp8State {
 public:
  // All references outlive the state.
  Fp8State(Device& device, Fp8Layers& layers);

  // Enqueue copies to the host: of scales, amax and counts once they are summed over all ranks; of the history once it
  // is updated. Wait for the stream before numbers() or saved_history().
  void read_numbers(Stream& stream);
  void read_history(Stream& stream);
  // Returns the numbers by slot (lib/model/fp8_tensors.h) of the step that was read.
  std::vector<Fp8Numbers> numbers() const;
  // Call after a step with finite results.
  void finished() { layers_.step_was_finite(); }

  std::vector<float> saved_history() const { return layers_.saved_history(history()); }
  // Fails with kFile, without a change, if `saved` belongs to another model.
  Result<void> load(const std::vector<float>& saved);

 private:
  size_t slots() const { return static_cast<size_t>(layers_.tensors().slots()); }
  // The parts of host_, in this order.
  std::span<float> scale() const { return {host_.data(), slots()}; }
  std::span<float> amax() const { return {host_.data() + slots(), slots()}; }
  std::span<float> counts() const { return {host_.data() + 2 * slots(), kNumFp8Counts * slots()}; }
  std::span<float> history() const { return {counts().data() + counts().size(), slots()}; }

  Fp8Layers& layers_;
  const HostBuffer<float> host_;
};

}  // namespace tri
