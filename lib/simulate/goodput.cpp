#include "lib/simulate/goodput.h"

#include <algorithm>
#include <cmath>

namespace tri {

FaultRates fault_rates(const Cluster& cluster, int ranks) {
  const ClusterFaults& faults = cluster.faults;
  return {.mtbf_s = 3600 * faults.device_mtbf_hours / ranks,
          .recovery_s = faults.detect_s + faults.diagnose_s + faults.restart_s,
          .stall_s = faults.stall_s};
}

double effective_share(const FaultRates& rates, double interval_s) {
  const double m = rates.mtbf_s;
  return interval_s / (m * std::exp(rates.recovery_s / m) * std::expm1((interval_s + rates.stall_s) / m));
}

// At the maximum (1 - τ/M) · e^((τ+δ)/M) = 1. The left side decreases in τ, from e^(δ/M) at 0 to 0 at M.
double best_interval(const FaultRates& rates) {
  double low = 0, high = rates.mtbf_s;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    const double left = (1 - middle / rates.mtbf_s) * std::exp((middle + rates.stall_s) / rates.mtbf_s);
    (left > 1 ? low : high) = middle;
  }
  return std::max(low, 1.0);
}

int spares_needed(const Cluster& cluster, int ranks, double probability) {
  const double mean = cluster.faults.repair_hours * ranks / cluster.faults.device_mtbf_hours;
  constexpr double kMany = 1e6;  // from here on the normal distribution approximates it
  if (mean > kMany) {
    double low = -12, high = 12;  // standard deviations
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
    }
    return static_cast<int>(std::min(std::ceil(mean + high * std::sqrt(mean)), 2e9));
  }
  const int most = static_cast<int>(mean + 12 * std::sqrt(mean) + 20);
  double log_term = -mean, sum = 0;
  for (int spares = 0; spares < most; ++spares) {
    sum += std::exp(log_term);
    if (sum >= probability) return spares;
    log_term += std::log(mean / (spares + 1));
  }
  return most;
}

Goodput goodput(const Cluster& cluster, int ranks, double write_s) {
  Goodput result{.rates = fault_rates(cluster, ranks)};
  result.best_interval_s = std::max(best_interval(result.rates), write_s);
  result.interval_s =
      cluster.faults.checkpoint_minutes > 0 ? 60 * cluster.faults.checkpoint_minutes : result.best_interval_s;
  result.effective = effective_share(result.rates, result.interval_s);
  result.best_effective = effective_share(result.rates, result.best_interval_s);
  constexpr double kAlmostAlways = 0.99;
  result.spares = spares_needed(cluster, ranks, kAlmostAlways);
  return result;
}

}  // namespace tri
