#include "lib/train/spikes.h"

#include <cmath>

namespace tri {

SpikeWindow::SpikeWindow(double deviations, std::vector<float> values) : deviations_(deviations) {
  if (deviations > 0 && values.size() % 2 == 0) values_ = std::move(values);
}

StepLimits SpikeWindow::limits() const {
  if (deviations_ == 0 || values_.size() < 2 * kLeast) return {};
  return {.loss = limit(0), .grad_norm = limit(1)};
}

void SpikeWindow::add(float loss, float grad_norm) {
  if (deviations_ == 0) return;
  if (values_.size() >= 2 * kSteps) values_.erase(values_.begin(), values_.end() - 2 * (kSteps - 1));
  values_.push_back(loss);
  values_.push_back(grad_norm);
}

float SpikeWindow::limit(size_t first) const {
  const double count = static_cast<double>(values_.size()) / 2;
  double sum = 0, squares = 0;
  for (size_t i = first; i < values_.size(); i += 2) sum += values_[i];
  const double mean = sum / count;
  for (size_t i = first; i < values_.size(); i += 2) squares += (values_[i] - mean) * (values_[i] - mean);
  return static_cast<float>(mean + deviations_ * std::sqrt(squares / (count - 1)));
}

}  // namespace tri
