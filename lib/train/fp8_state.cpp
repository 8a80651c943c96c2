#include "lib/train/fp8_state.h"

#include <algorithm>

namespace tri {

Fp8State::Fp8State(Device& device, Fp8Layers* layers, Stream& compute)
    : layers_(layers), compute_(compute), host_(device, std::max<size_t>(1, slots() * (3 + kNumFp8Counts))) {
  std::fill_n(host_.data(), host_.size(), 0.0f);
}

void Fp8State::read(std::span<float> to, const Tensor& from) {
  TRI_REQUIRE(from.dtype == Dtype::kF32 && from.numel() == static_cast<int64_t>(to.size()),
              "{} does not fit into {} numbers", from.shape_text(), to.size());
  compute_.copy(to.data(), from.data, from.bytes());
}

void Fp8State::count() {
  if (layers_ != nullptr) layers_->count();
}

void Fp8State::reduce(GroupOnStream& world) {
  if (layers_ == nullptr) return;
  layers_->reduce(world);
  const Fp8Tensors& tensors = layers_->tensors();
  read(scale(), tensors.scale());
  read(amax(), tensors.amax());
  read(counts(), tensors.float_counts);
}

void Fp8State::update(const Tensor& grad_scale) {
  if (layers_ != nullptr) layers_->update(grad_scale);
}

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

void Fp8State::finished() {
  if (layers_ != nullptr) layers_->step_was_finite();
}

std::vector<float> Fp8State::saved_history() {
  if (layers_ == nullptr) return {};
  read(history(), layers_->tensors().history());
  compute_.synchronize();
  return layers_->saved_history(history());
}

Result<void> Fp8State::load(const std::vector<float>& saved) {
  if (layers_ == nullptr || saved.empty()) return {};
  if (saved.size() != slots())
    return file_error("the checkpoint's FP8 history covers {} tensors, but the model has {}", saved.size(), slots());
  layers_->load_history(saved);
  std::copy(saved.begin(), saved.end(), history().begin());
  return {};
}

}  // namespace tri
