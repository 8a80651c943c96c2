// The share of a run's time that faults leave for training, in closed form.
//
// Stops arrive as a Poisson process with mean distance M. After each, the job is down for R: detection,
// diagnosis, restart; work since the last checkpoint is done again. Between checkpoints lie τ seconds of work, each
// holds training up for δ. Then the share of time that is work (Daly 2006) is
//   τ / (M · e^(R/M) · (e^((τ+δ)/M) - 1))
// where stops during recovery start it again.
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

// `ranks` devices of a cluster.
FaultRates fault_rates(const Cluster& cluster, int ranks);

double effective_share(const FaultRates& rates, double interval_s);

// τ that makes effective_share largest.
double best_interval(const FaultRates& rates);

// Spare machines with which, at a given moment, none is missing with this probability: those in repair are Poisson
// distributed with mean (stops an hour that take a machine away) · (hours of repair).
int spares_needed(const Cluster& cluster, int ranks, double probability);

// A run's faults at a glance.
struct Goodput {
  FaultRates rates;
  double interval_s = 0, best_interval_s = 0;
  double effective = 0, best_effective = 0;
  int spares = 0;
};
// `write_s`: that a checkpoint takes to be written, alongside training; the best interval is no shorter.
Goodput goodput(const Cluster& cluster, int ranks, double write_s = 0);

}  // namespace tri
