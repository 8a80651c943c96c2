#include "lib/train/fp8_state.h"

#include <algorithm>

namespace tri {
namespace {

void read(Stream& stream, std::span<float> to, const Tensor& from) {
  TRI_REQUIRE(from.dtype == Dtype::kF32 && from.numel() == static_cast<int64_t>(to.size()),
              "{} does not fit into {} numbers", from.shape_text(), to.size());
  stream.copy(to.data(), from.data, from.bytes());
}

}  // namespace

Fp8State::Fp8State(Device& device, Fp8Layers& layers) : layers_(layers), host_(device, slots() * (3 + kNumFp8Counts)) {
  std::fill_n(host_.data(), host_.size(), 0.0f);
}

void Fp8State::read_numbers(Stream& stream) {
  const Fp8Tensors& tensors = layers_.tensors();
  read(stream, scale(), tensors.scale());
  read(stream, amax(), tensors.amax());
  read(stream, counts(), tensors.float_counts);
}

void Fp8State::read_history(Stream& stream) { read(stream, history(), layers_.tensors().history()); }

std::vector<Fp8Numbers> Fp8State::numbers() const {
  std::vector<Fp8Numbers> numbers(slots());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::span<float> of_slot = counts().subspan(i * kNumFp8Counts, kNumFp8Counts);
    numbers[i] = {.scale = scale()[i],
                  .amax = amax()[i],
                  .elements = of_slot[static_cast<size_t>(Fp8Count::kElements)],
                  .saturated = of_slot[static_cast<size_t>(Fp8Count::kSaturated)],
                  .underflowed = of_slot[static_cast<size_t>(Fp8Count::kUnderflowed)]};
  }
  return numbers;
}

Result<void> Fp8State::load(const std::vector<float>& saved) {
  if (saved.size() != slots())
    return file_error("the checkpoint's FP8 history covers {} tensors, but the model has {}", saved.size(), slots());
  layers_.load_history(saved);
  std::copy(saved.begin(), saved.end(), history().begin());
  return {};
}

}  // namespace tri
