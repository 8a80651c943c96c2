// Effective time with checkpoints in host memory (checkpoint.memory_every) in addition to those in storage: what a
// snapshot costs a step, and a Monte Carlo of faults.
//
// A snapshot is copied to host memory and sent to the memory of a buddy node. It counts once both copies are complete
// on all nodes. A stop that ends only processes is followed by a restart from the node's own copy, the loss of a node
// by one from its buddy's, and the loss of two buddies by one from storage. Not modelled: two independent losses that
// hit buddies by chance before the first is replaced, and copies that fail their checksums.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/simulate/goodput.h"
#include "lib/simulate/step_model.h"

namespace tri {

// Where the state of a restart comes from, in the order of the losses that lead to it.
enum class RestartFrom { kOwnMemory, kBuddyMemory, kStorage };
inline constexpr int kRestartSources = 3;

// What a snapshot costs, for the rank with the largest part of the state.
struct SnapshotPrice {
  double bytes = 0;
  double copy_s = 0, send_s = 0;  // to host memory; to the buddy, at the network's full rate
  double exposed_copy_s = 0;      // the part of the copy that compute does not hide
  double exposed_send_s = 0;      // the part of sending that exceeds the network's idle time in a step
  double slowdown_s = 0;          // of compute, from which the hidden part of the copy takes memory bandwidth
  double fixed_s = 0;             // faults.snapshot_s
  double complete_s = 0;          // from the end of the step until the snapshot counts

  double seconds() const { return exposed_copy_s + exposed_send_s + slowdown_s + fixed_s; }  // that training takes more
};

// `step_s`: of the predicted step, at least 0 of which the network is idle.
SnapshotPrice snapshot_price(const Workload& workload, const Cluster& cluster, double step_s);

// A job under faults, which arrive as a Poisson process. Positions are numbers of completed steps; checkpoints are
// taken at multiples of their interval, as in a run.
struct FaultyJob {
  double mtbf_s = 0, step_s = 0;
  double process_share = 0;                            // of the stops
  double buddies_share = 0;                            // of the stops that lose a node
  std::array<double, kRestartSources> recovery_s{};    // by RestartFrom: from the stop to the first new step
  int64_t storage_every = 1;                           // steps
  double storage_stall_s = 0, storage_complete_s = 0;  // until it counts, after the stall
  int64_t memory_every = 0;                            // steps; 0: checkpoints are in storage only
  double memory_stall_s = 0, memory_complete_s = 0;    // as for storage
};

struct FaultStatistics {
  double effective = 0;                             // the share of the time spent on steps that were not lost
  double standard_error = 0;                        // of `effective`, from 50 parts of the run
  double lost_steps = 0;                            // mean per stop during training, with the unfinished part of a step
  double recovery_s = 0;                            // mean per stop during training
  std::array<int64_t, kRestartSources> restarts{};  // by RestartFrom
};

// Simulates the job until `stops` stops (at least 50) have happened during training. Stops during a recovery restart
// it. Returns the same for the same arguments.
FaultStatistics simulate_faults(const FaultyJob& job, int64_t stops, uint64_t seed);

// The job of `workload` on `cluster`, with checkpoints in storage as in goodput().
FaultyJob faulty_job(const Workload& workload, const Cluster& cluster, double step_s, int64_t memory_every);

struct MemoryCheckpointRow {
  FaultyJob job;
  SnapshotPrice price;  // zero if job.memory_every is 0
  FaultStatistics faults;
};

// Rows for checkpoints in storage only, then with memory every 10 steps and every step, and with `configured` steps if
// that is another number > 0.
std::vector<MemoryCheckpointRow> memory_checkpoint_rows(const Workload& workload, const Cluster& cluster, double step_s,
                                                        int64_t configured = 0);

std::string to_text(const std::vector<MemoryCheckpointRow>& rows);
std::string to_json(const std::vector<MemoryCheckpointRow>& rows);  // a list, one line

}  // namespace tri
