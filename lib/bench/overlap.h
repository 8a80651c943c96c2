// `trireme bench overlap`: how much of each axis' communication is hidden behind concurrent compute.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct OverlapBench {
  int rounds = 11;  // of each of the three; the median counts
};

// The share of a transfer that costs no time alongside the compute. Times have any common unit.
struct Hidden {
  double raw = 0;       // 1 - (together - compute) / transfer
  double fraction = 0;  // within [0, 1]
  bool clamped = false;
};
Hidden hidden_fraction(double transfer, double compute, double together);

// One kind of transfer alongside one kind of work. Each time is the median over rounds of the slowest rank's.
struct OverlapRow {
  std::string axis;      // tp, dp, pp
  std::string transfer;  // AxisTransfers::gather_name, reduce_name: "all-gather", "reduce by copies, 3 splits"
  std::string compute;   // "fc1 forward"; "fc1 forward x 3" if one run is shorter than the transfer
  int ranks = 0;         // of the axis
  int64_t bytes = 0;     // the whole gathered or reduced rows, bucket, or boundary tensor
  double transfer_us = 0, compute_us = 0, together_us = 0;
  Hidden hidden;
  bool uncertain = false;  // together - compute scatters over more than half the transfer: the middle half of the
                           // rounds
};

// tp   a gather of rows with the GEMM that reads them, and GEMMs with the reduce of their rows: the code of the layers,
//      forward and backward, with `parallel.overlap_tp` and `tp_transfers` as they are. Compute alone: undivided GEMMs,
//      so that what splitting them costs counts as not hidden.
// dp   a bucket's gradient reduction alongside weight-gradient GEMMs, its parameter gather alongside forward GEMMs
// pp   sends and receives of a boundary tensor, activations and gradients, alongside a block's forward pass
// On weights and activations of random numbers; in the memory of a run of this config. `config` resolved. Collective;
// all ranks have the same rows. Axes of one rank have none.
std::vector<OverlapRow> bench_overlap(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                      const OverlapBench& bench);

}  // namespace tri
