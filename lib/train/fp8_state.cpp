#include "lib/train/fp8_state.h"

#include <algorithm>

namespace tri {
namespace {

void read(Stream& stream, std::span<float> to, const Tensor& from) {
  TRI_REQUIRE(from.dtype == Dtype::kF32 && from.numel() == static_cast<int64_t>(to.size()), "{} into {} numbers",
              from.shape_text(), to.size());
  stream.copy(to.data(), from.data, from.bytes());
}

}  // namespace

Fp8State::Fp8State(const Config& config, Device& device, Fp8Layers& layers)
    : layers_(layers), host_(device, slots() * (3 + kNumFp8Counts)) {
  std::fill_n(host_.data(), host_.size(), 0.0f);
  if (config.precision.fp8_guard == Switch::kOn) guard_.emplace(config);
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

std::string Fp8State::finished(double loss, std::span<const Fp8Numbers> numbers) {
  layers_.step_was_finite();
  if (!guard_) return "";
  const std::string fell = guard_->step(loss, numbers);
  if (!fell.empty()) layers_.set_fallen(guard_->fallen());
  return fell;
}

std::string Fp8State::text() const {
  return history_text(layers_.kept_history(history())) + (guard_ ? kGuardMark + guard_->text() : "");
}

Result<void> Fp8State::load(const std::string& text) {
  const size_t mark = text.find(kGuardMark);
  if (guard_ && mark != std::string::npos) {
    if (auto loaded = guard_->load(text.substr(mark + std::string_view(kGuardMark).size())); !loaded) return loaded;
    layers_.set_fallen(guard_->fallen());
  }
  const auto loaded = history_of_text(text.substr(0, mark), layers_.tensors().slots());
  if (!loaded) return loaded.error();
  layers_.load_history(loaded.value());
  std::copy(loaded.value().begin(), loaded.value().end(), history().begin());
  return {};
}

std::string Fp8State::fallen_of(const std::string& text) {
  const size_t mark = text.find(kGuardMark);
  return mark == std::string::npos ? "" : Fp8Guard::fallen_of(text.substr(mark + std::string_view(kGuardMark).size()));
}

}  // namespace tri
