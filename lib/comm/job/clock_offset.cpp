#include "lib/comm/job/clock_offset.h"

#include <mpi.h>

#include <limits>
#include <vector>

#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/host/mpi_check.h"
#include "lib/comm/job/job.h"

namespace tri {
namespace {

constexpr int kClockTag = 32001;  // on MPI_COMM_WORLD, distinct from those of lib/comm/job/job.cpp
constexpr int kPings = 24;        // some are slow: the first one, and those during which another process runs

// Both sides use MPI's own waits, which spin, so that no answer waits for a sleeping rank.
void answer(int host_leader) {
  for (int i = 0; i < kPings; ++i) {
    TRI_MPI(MPI_Recv(nullptr, 0, MPI_BYTE, host_leader, kClockTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    const int64_t time = FlightRecorder::now();
    TRI_MPI(MPI_Send(&time, sizeof time, MPI_BYTE, host_leader, kClockTag, MPI_COMM_WORLD));
  }
}

ClockOffset ask() {
  ClockOffset best{.error = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kPings; ++i) {
    int64_t leader_time = 0;
    const int64_t before = FlightRecorder::now();
    TRI_MPI(MPI_Send(nullptr, 0, MPI_BYTE, 0, kClockTag, MPI_COMM_WORLD));
    TRI_MPI(MPI_Recv(&leader_time, sizeof leader_time, MPI_BYTE, 0, kClockTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    const int64_t after = FlightRecorder::now(), error = (after - before + 1) / 2;
    if (error < best.error) best = {.offset = leader_time - (before + (after - before) / 2), .error = error};
  }
  return best;
}

}  // namespace

ClockOffset measure_clock_offset(Job& job, int leader) {
  const std::vector<int> leaders = job.all_gather(leader);  // by world rank
  ClockOffset mine;
  if (job.world_rank() == 0) {
    for (int rank = 0; rank < job.world_size(); ++rank)
      if (leaders[static_cast<size_t>(rank)] == rank && rank != leader) answer(rank);
  } else if (job.world_rank() == leader) {
    mine = ask();
  }
  return job.all_gather(mine)[static_cast<size_t>(leader)];
}

}  // namespace tri
