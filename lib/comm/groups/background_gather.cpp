#include "lib/comm/groups/background_gather.h"

#include <mpi.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "lib/comm/host/mpi_check.h"
#include "lib/comm/host/mpi_wait.h"

namespace tri {

// A separate communicator, so that other collectives of the same ranks may run in between.
struct BackgroundGather::Handles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
};

BackgroundGather::BackgroundGather(int64_t bytes)
    : handles_(std::make_unique<Handles>()), mine_(static_cast<size_t>(bytes), '\0') {
  await_all_ranks();
  TRI_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &handles_->comm));
  int rank = 0, size = 1;
  TRI_MPI(MPI_Comm_rank(handles_->comm, &rank));
  TRI_MPI(MPI_Comm_size(handles_->comm, &size));
  if (rank == 0) all_.resize(mine_.size() * static_cast<size_t>(size));
}

BackgroundGather::~BackgroundGather() {
  try {
    wait();
  } catch (const Fatal&) {  // the job is ending; the rank that noticed reports why
  }
  MPI_Comm_free(&handles_->comm);
}

void BackgroundGather::begin(const void* message) {
  wait();
  std::memcpy(mine_.data(), message, mine_.size());
  const auto bytes = static_cast<int>(mine_.size());
  TRI_MPI(
      MPI_Igather(mine_.data(), bytes, MPI_BYTE, all_.data(), bytes, MPI_BYTE, 0, handles_->comm, &handles_->request));
}

bool BackgroundGather::finished() {
  int done = 1;
  TRI_MPI(MPI_Test(&handles_->request, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

void BackgroundGather::wait() {
  while (!finished()) std::this_thread::sleep_for(std::chrono::microseconds(50));  // MPI's own wait spins
}

}  // namespace tri
