// `trireme bench comm`: times each collective on each axis of a config's mesh.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct CommBench {
  int64_t most_bytes = int64_t{1} << 30;  // sizes are powers of 16 up to this
  int rounds = 11;                        // the median counts
  // Enqueues each call behind one of the largest size, as behind a layer's kernels: ranks are synchronized, and their
  // hosts ahead. Otherwise each call runs on an idle stream, where a small call takes its host's time.
  bool queued = false;
};

// nccl-tests' formulas: size is the full buffer (all-gather's output, reduce-scatter's input); algorithm bandwidth is
// size / time; bus bandwidth multiplies it by 2(n-1)/n for an all-reduce, (n-1)/n for all-gather and reduce-scatter,
// and 1 for broadcast and send/receive, so that it compares with the wires.
struct CommRow {
  std::string axis, operation;
  int ranks = 0;
  int64_t bytes = 0;
  double microseconds = 0;
  double bus_bytes_per_s = 0;
};

// Collective; every rank gets its own clock's rows. Axes of one rank have none.
std::vector<CommRow> bench_comm(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                const CommBench& bench);

}  // namespace tri
