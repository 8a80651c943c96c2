#include "lib/train/fp8_guard.h"

#include <bit>
#include <sstream>
#include <utility>

#include "lib/observe/fp8_report.h"

namespace tri {
namespace {

bool lost_too_much(const Fp8Numbers& n) {
  return n.saturated > kMostSaturated * double{n.elements} || n.underflowed > kMostUnderflowed * double{n.elements};
}

}  // namespace

Fp8Guard::Fp8Guard(const Config& config) : config_(config), beyond_(static_cast<size_t>(config.model.layers), 0) {
  for (size_t layer = 0; layer < beyond_.size(); ++layer)
    if (never_fp8(layer)) beyond_[layer] = kFallen;
}

// precision.fp8_first_layers and fp8_last_layers, which may change at a resume.
bool Fp8Guard::never_fp8(size_t layer) const {
  return gemm_format(config_, static_cast<int>(layer)) != GemmFormat::kFp8;
}

std::string Fp8Guard::step(double loss, std::span<const Fp8Numbers> numbers) {
  const size_t layers = beyond_.size();
  TRI_REQUIRE(numbers.size() == layers * kNumFp8Operands * kNumLinears, "{} slots of {} layers", numbers.size(),
              layers);
  std::string fell;
  for (size_t layer = 0; layer < layers; ++layer) {
    int& beyond = beyond_[layer];
    if (beyond == kFallen) continue;
    bool lost = false;
    for (size_t operand = 0; operand < kNumFp8Operands; ++operand)
      for (size_t linear = 0; linear < kNumLinears; ++linear)
        lost = lost || lost_too_much(numbers[(operand * layers + layer) * kNumLinears + linear]);
    beyond = lost ? beyond + 1 : 0;
    if (beyond < kRangeSteps) continue;
    beyond = kFallen;
    fell += fmt::format("{}{}", fell.empty() ? "" : ", ", layer);
  }
  if (!fell.empty())
    fell = fmt::format("fp8: in {} steps in succession layers {} lost numbers to its range: they go on in {}",
                       kRangeSteps, fell, enum_name(config_.precision.compute));
  const bool high = mean_loss_ > 0 && loss > kLossRatio * mean_loss_;
  high_ = high ? high_ + 1 : 0;
  if (!high) mean_loss_ = mean_loss_ == 0 ? loss : kLossDecay * mean_loss_ + (1 - kLossDecay) * loss;
  if (high_ < kLossSteps) return fell;
  high_ = 0;
  mean_loss_ = loss;
  bool any = false;
  for (int& beyond : beyond_) any = std::exchange(beyond, kFallen) != kFallen || any;
  if (any)
    fell =
        fmt::format("fp8: in {} steps in succession the loss was more than {} times its mean: all layers go on in {}",
                    kLossSteps, kLossRatio, enum_name(config_.precision.compute));
  return fell;
}

std::vector<bool> Fp8Guard::fallen() const {
  std::vector<bool> fallen;
  for (const int beyond : beyond_) fallen.push_back(beyond == kFallen);
  return fallen;
}

std::string Fp8Guard::text() const {
  std::string text = fmt::format("{:016x} {}", std::bit_cast<uint64_t>(mean_loss_), high_);
  for (size_t layer = 0; layer < beyond_.size(); ++layer)
    text += fmt::format(" {}", never_fp8(layer) ? 0 : beyond_[layer]);
  return text;
}

Result<void> Fp8Guard::load(const std::string& text) {
  std::istringstream from(text);
  uint64_t mean = 0;
  int high = 0;
  from >> std::hex >> mean >> std::dec >> high;
  std::vector<int> beyond(beyond_.size(), 0);
  for (int& steps : beyond) from >> steps;
  std::string more;
  if (from.fail() || from >> more)
    return file_error("the checkpoint's state of precision.fp8_guard is not that of {} layers", beyond_.size());
  mean_loss_ = std::bit_cast<double>(mean);
  high_ = high;
  for (size_t layer = 0; layer < beyond.size(); ++layer)
    if (!never_fp8(layer)) beyond_[layer] = beyond[layer];
  return {};
}

std::string Fp8Guard::fallen_of(const std::string& text) {
  std::istringstream from(text);
  std::string fallen, mean, high;
  from >> mean >> high;
  int beyond = 0;
  for (int layer = 0; from >> beyond; ++layer)
    if (beyond == kFallen) fallen += fmt::format("{}{}", fallen.empty() ? "" : ", ", layer);
  return fallen;
}

}  // namespace tri
