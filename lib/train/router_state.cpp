#include "lib/train/router_state.h"

#include "kernels/ops.h"

namespace tri {

RouterState::RouterState(Device& device, const MoeStatistics& statistics, float bias_rate, Stream& compute)
    : statistics_(statistics),
      bias_rate_(bias_rate),
      compute_(compute),
      host_(device, statistics.totals.empty() ? 1 : static_cast<size_t>(statistics.totals.numel())) {}

void RouterState::update(const Tensor& grad_scale) {
  if (empty()) return;
  compute_.copy(host_.data(), statistics_.totals.data, statistics_.totals.bytes());
  if (statistics_.bias.empty() || bias_rate_ == 0) return;
  for (int64_t layer = 0; layer < statistics_.bias[0]; ++layer)
    router_bias_update({.bias = statistics_.bias.rows(layer, 1).flat(),
                        .load = statistics_.load(layer),
                        .grad_scale = grad_scale,
                        .rate = bias_rate_},
                       compute_);
}

std::vector<RouterNumbers> RouterState::numbers() const {
  std::vector<RouterNumbers> layers;
  if (empty()) return layers;
  const auto columns = static_cast<size_t>(statistics_.totals[1]);
  for (size_t layer = 0; layer < static_cast<size_t>(statistics_.totals[0]); ++layer) {
    const float* row = host_.data() + layer * columns;
    const size_t experts = columns - MoeStatistics::kLosses;
    layers.push_back({.load = {row, row + experts}, .aux_loss = row[experts], .z_loss = row[experts + 1]});
  }
  return layers;
}

std::vector<float> RouterState::saved_bias() {
  if (statistics_.bias.empty()) return {};
  std::vector<float> saved(static_cast<size_t>(statistics_.bias.numel()));
  compute_.copy(saved.data(), statistics_.bias.data, statistics_.bias.bytes());
  compute_.synchronize();
  return saved;
}

Result<void> RouterState::load(const std::vector<float>& saved) {
  return load_router_bias(saved, statistics_.bias, compute_);
}

}  // namespace tri
