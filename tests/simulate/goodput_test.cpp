// Effective time under faults: compares the closed form with the simulated process, and with published points.
#include "lib/simulate/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace tri {
namespace {

// Returns the share of `work_s` seconds of work in the elapsed time, over all of `runs` runs, with random stops.
double simulated_effective_share(const FaultRates& rates, double interval_s, double work_s, int runs, uint64_t seed) {
  std::mt19937_64 random(seed);
  // Avoids std::exponential_distribution, whose numbers differ between standard libraries.
  const auto next_stop = [&] {
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    return -rates.mtbf_s * std::log(uniform);
  };
  double time = 0, done = 0;
  for (int run = 0; run < runs; ++run) {
    double work = 0, stop = next_stop();  // from now
    while (work < work_s) {
      const double segment = interval_s + rates.stall_s;
      if (stop >= segment) {  // the work is saved
        work += interval_s;
        time += segment;
        stop -= segment;
        continue;
      }
      time += stop;
      for (stop = next_stop(); stop < rates.recovery_s; stop = next_stop()) time += stop;  // recovery starts again
      time += rates.recovery_s;
      stop -= rates.recovery_s;
    }
    done += work;
  }
  return done / time;
}

TEST(Goodput, closed_form_equals_the_simulated_process_within_1_percent) {
  for (const double mtbf : {1800.0, 4 * 3600.0, 40 * 3600.0})
    for (const double recovery : {180.0, 900.0})
      for (const double stall : {0.04, 5.0, 60.0}) {
        const FaultRates rates{mtbf, recovery, stall};
        for (const double interval : {best_interval(rates), 600.0}) {
          const double closed = effective_share(rates, interval);
          const double simulated = simulated_effective_share(rates, interval, 2000 * mtbf, 10, 1234);
          EXPECT_NEAR(simulated / closed, 1, 0.01) << mtbf << " " << recovery << " " << stall << " " << interval;
        }
      }
}

TEST(Goodput, best_interval_is_the_best) {
  for (const double stall : {0.04, 5.0, 60.0}) {
    const FaultRates rates{4 * 3600.0, 900, stall};
    const double best = best_interval(rates);
    for (const double factor : {0.5, 0.9, 1.1, 2.0})
      EXPECT_GT(effective_share(rates, best), effective_share(rates, factor * best));
    // Young's first-order formula for small stalls.
    EXPECT_NEAR(best / std::sqrt(2 * stall * rates.mtbf_s), 1, 0.05);
  }
}

TEST(Goodput, llama3_rate_at_12288_and_100000_ranks) {
  Cluster cluster;  // the default rate is Llama 3's: one stop in 2,112 device-days
  EXPECT_NEAR(fault_rates(cluster, 12288).mtbf_s / 3600, 4.1, 0.05);
  const auto share = [&](int ranks, double stall, double recovery) {
    FaultRates rates = fault_rates(cluster, ranks);
    rates.stall_s = stall;
    rates.recovery_s = recovery;
    return effective_share(rates, best_interval(rates));
  };
  EXPECT_NEAR(share(12288, 5, 900), 0.917, 0.003);
  EXPECT_NEAR(share(12288, 0.04, 180), 0.986, 0.003);
  EXPECT_NEAR(share(100000, 5, 900), 0.566, 0.01);
  EXPECT_NEAR(share(100000, 0.04, 180), 0.900, 0.01);
}

// Uses the sum of the Poisson distribution up to a million concurrent repairs, a normal distribution beyond: without a
// step between them, and without an endless sum.
TEST(Goodput, spares_of_very_unreliable_machines) {
  Cluster cluster;
  cluster.faults.repair_hours = 1;
  const auto spares = [&](double mean) {
    cluster.faults.device_mtbf_hours = 1000 / mean;
    return static_cast<double>(spares_needed(cluster, 1000, 0.99));
  };
  for (const double mean : {0.999e6, 1.001e6}) EXPECT_NEAR((spares(mean) - mean) / std::sqrt(mean), 2.326, 0.01);
  EXPECT_GT(spares(1e15), 1e9);
}

TEST(Goodput, more_ranks_need_more_spares_and_leave_less) {
  Cluster cluster;
  int spares = 0;
  double effective = 1;
  for (const int ranks : {64, 1024, 12288, 100000}) {
    const Goodput result = goodput(cluster, ranks);
    EXPECT_GE(result.spares, spares);
    EXPECT_LT(result.effective, effective);
    spares = result.spares;
    effective = result.effective;
  }
  EXPECT_GT(spares, 47);  // 100,000 devices: 47 machines in repair on average
}

}  // namespace
}  // namespace tri
