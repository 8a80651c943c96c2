#include "lib/comm/host/mpi_wait.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "lib/comm/host/bootstrap.h"
#include "lib/comm/host/mpi_check.h"

namespace tri {
namespace {

constexpr int kMeetTag = 31500;  // distinct from those of groups and of other exchanges

void receive_word(int from) {
  MPI_Request request;
  TRI_MPI(MPI_Irecv(nullptr, 0, MPI_BYTE, from, kMeetTag, MPI_COMM_WORLD, &request));
  wait_sleeping(request);
}

void send_word(int to) { TRI_MPI(MPI_Send(nullptr, 0, MPI_BYTE, to, kMeetTag, MPI_COMM_WORLD)); }

}  // namespace

// MPI moves data only inside its calls, so the pauses start short.
void wait_sleeping(std::vector<MPI_Request>& requests) {
  std::chrono::microseconds pause{0};
  for (int done = 0;; pause = std::min(pause + std::chrono::microseconds(1), std::chrono::microseconds(200))) {
    TRI_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done) return;
    std::this_thread::sleep_for(pause);
  }
}

void wait_sleeping(MPI_Request& request) {
  std::vector<MPI_Request> one{request};
  wait_sleeping(one);
  request = one.front();
}

void await_all_ranks() {
  MPI_Request request;
  TRI_MPI(MPI_Ibarrier(MPI_COMM_WORLD, &request));
  wait_sleeping(request);
}

void await_members(const std::vector<int>& world_ranks) {
  int world_rank = 0;
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  const TreeNeighbours tree = neighbours_of(world_rank, world_ranks);
  for (const int child : tree.children) receive_word(child);
  if (tree.parent >= 0) {
    send_word(tree.parent);
    receive_word(tree.parent);
  }
  for (const int child : tree.children) send_word(child);
}

}  // namespace tri
