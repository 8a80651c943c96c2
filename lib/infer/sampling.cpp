#include "lib/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "io/base/error.h"

namespace tri {

void cap_logits(std::span<float> logits, double softcap) {
  const auto cap = static_cast<float>(softcap);
  if (cap > 0)
    for (float& logit : logits) logit = cap * std::tanh(logit / cap);
}

int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform) {
  TRI_REQUIRE(!logits.empty(), "no logits");
  if (sampling.temperature <= 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (sampling.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(sampling.top_k)));
  const double largest = logits[static_cast<size_t>(order.front())];
  double total = 0;
  std::vector<double> cumulative;
  for (const int32_t token : order) {
    total += std::exp((logits[static_cast<size_t>(token)] - largest) / sampling.temperature);
    cumulative.push_back(total);
  }
  // Keeps the fewest tokens that hold top_p of the probability, at least one.
  const auto enough = std::lower_bound(cumulative.begin(), cumulative.end(), sampling.top_p * total);
  cumulative.resize(std::min(static_cast<size_t>(enough - cumulative.begin()) + 1, cumulative.size()));
  total = cumulative.back();
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  return order[std::min(static_cast<size_t>(found - cumulative.begin()), cumulative.size() - 1)];
}

}  // namespace tri
