// The share of a run's time that remains for training despite faults, in closed form.
//
// Stops arrive as a Poisson process with mean interval M. After each stop the job is down for R (detection, diagnosis,
// restart) and repeats the work since the last checkpoint. Checkpoints are τ seconds of work apart, and each stalls
// training for δ. Then the share of time spent on work (Daly 2006) is
//   τ / (M · e^(R/M) · (e^((τ+δ)/M) - 1))
// where a stop during recovery restarts the recovery.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"

namespace tri {

struct FaultRates {
  double mtbf_s = 0;      // M, of the whole job
  double recovery_s = 0;  // R
  double stall_s = 0;     // δ
};

// Returns the rates for `ranks` devices of a cluster.
FaultRates fault_rates(const Cluster& cluster, int ranks);

double effective_share(const FaultRates& rates, double interval_s);

// Returns the τ that maximises effective_share.
double best_interval(const FaultRates& rates);

// Returns the number of spare machines that suffices with this probability at a given moment. The number of machines in
// repair is Poisson distributed with mean (stops per hour that remove a machine) · (hours of repair).
int spares_needed(const Cluster& cluster, int ranks, double probability);

// Summary of a run's faults.
struct Goodput {
  FaultRates rates;
  double interval_s = 0, best_interval_s = 0;
  double effective = 0, best_effective = 0;
  int spares = 0;
};
// `write_s`: how long writing a checkpoint takes, alongside training; the best interval is no shorter.
Goodput goodput(const Cluster& cluster, int ranks, double write_s = 0);

}  // namespace tri
