// What the host knows of FP8 GEMMs on this rank: the numbers of a step, the history of scales, the guard's decisions,
// and the text of these that a checkpoint keeps. The only owner of the layout in which they are read from the device.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/model/fp8.h"
#include "lib/train/fp8_guard.h"

namespace tri {

class Fp8State {
 public:
  // Whatever is referred to outlives the state.
  Fp8State(const Config& config, Device& device, Fp8Layers& layers);

  // Enqueue copies to the host: of scales, amax and counts once they are summed over all ranks, of the history once it
  // is updated. The stream must be waited for before numbers(), finished() or text().
  void read_numbers(Stream& stream);
  void read_history(Stream& stream);
  // By slot (lib/model/fp8_tensors.h), of the step whose numbers were read.
  std::vector<Fp8Numbers> numbers() const;
  // After a step that was finite. Returns which layers precision.fp8_guard lets fall back and why; "" in most steps.
  std::string finished(double loss, std::span<const Fp8Numbers> numbers);

  // The history, and behind kGuardMark the guard's state.
  std::string text() const;
  // Fails with kFile if `text` is not that of this model; then nothing has changed but the guard.
  Result<void> load(const std::string& text);
  static constexpr const char* kGuardMark = " guard ";
  bool has_guard() const { return guard_.has_value(); }
  // The layers that had fallen back by such a text: "0, 2"; "" if none had.
  static std::string fallen_of(const std::string& text);

 private:
  size_t slots() const { return static_cast<size_t>(layers_.tensors().slots()); }
  // The parts of host_, in this order.
  std::span<float> scale() const { return {host_.data(), slots()}; }
  std::span<float> amax() const { return {host_.data() + slots(), slots()}; }
  std::span<float> counts() const { return {host_.data() + 2 * slots(), kNumFp8Counts * slots()}; }
  std::span<float> history() const { return {counts().data() + counts().size(), slots()}; }

  Fp8Layers& layers_;
  const HostBuffer<float> host_;
  std::optional<Fp8Guard> guard_;  // precision.fp8_guard
};

}  // namespace tri
