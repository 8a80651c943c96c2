#include "lib/comm/job.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "io/base/log.h"
#include "lib/comm/mpi_check.h"
#include "lib/comm/mpi_group.h"
#include "lib/comm/nccl_group.h"

namespace tri {
namespace {

constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;  // MPI counts are ints
constexpr int kExchangeTag = 32000;                     // groups in the making have small ones

// MPI's own waits spin, and others may need the core. MPI moves data only inside its calls: the pauses begin short.
void wait_sleeping(MPI_Request& request) {
  std::chrono::microseconds pause{0};
  for (int done = 0;; pause = std::min(pause + std::chrono::microseconds(1), std::chrono::microseconds(200))) {
    TRI_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

Job::Job(int* argc, char*** argv) {
  int provided = 0;
  TRI_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_MULTIPLE)
    throw Fatal(ExitCode::kComm, "this MPI library does not grant MPI_THREAD_MULTIPLE; use an Open MPI built with it");
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_));
  TRI_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size_));
  MPI_Comm node;
  TRI_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank_, MPI_INFO_NULL, &node));
  TRI_MPI(MPI_Comm_rank(node, &node_rank_));
  int node_size = 1;
  TRI_MPI(MPI_Comm_size(node, &node_size));
  node_ranks_.resize(static_cast<size_t>(node_size));
  TRI_MPI(MPI_Allgather(&world_rank_, 1, MPI_INT, node_ranks_.data(), 1, MPI_INT, node));
  TRI_MPI(MPI_Comm_free(&node));
}

Job::~Job() { MPI_Finalize(); }

bool Job::all_of(bool mine) {
  int all = mine;
  TRI_MPI(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD));
  return all != 0;
}

void Job::barrier() {
  MPI_Request request;
  TRI_MPI(MPI_Ibarrier(MPI_COMM_WORLD, &request));
  wait_sleeping(request);  // not MPI_Barrier, which spins
}

// All sends are under way before the first receive is waited for, so no order of ranks can block them.
void Job::exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming) {
  std::vector<MPI_Request> sends;
  for (const Outgoing& message : outgoing)
    for (int64_t at = 0; at < message.bytes; at += kMaxMessageBytes)
      TRI_MPI(MPI_Isend(static_cast<const char*>(message.data) + at,
                        static_cast<int>(std::min(kMaxMessageBytes, message.bytes - at)), MPI_BYTE, message.to,
                        kExchangeTag, MPI_COMM_WORLD, &sends.emplace_back()));
  std::vector<char> buffer;
  for (const Incoming& message : incoming) {
    buffer.resize(static_cast<size_t>(message.bytes));
    for (int64_t at = 0; at < message.bytes; at += kMaxMessageBytes) {
      MPI_Request request;
      TRI_MPI(MPI_Irecv(buffer.data() + at, static_cast<int>(std::min(kMaxMessageBytes, message.bytes - at)), MPI_BYTE,
                        message.from, kExchangeTag, MPI_COMM_WORLD, &request));
      wait_sleeping(request);
    }
    message.take(buffer.data());
  }
  for (MPI_Request& request : sends) wait_sleeping(request);
}

void Job::end_all(ExitCode code) {
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

std::unique_ptr<CommGroup> Job::make_group(const std::string& name, const std::vector<int>& world_ranks, int tag,
                                           Device& device) {
  if (world_ranks.size() == 1) return make_self_group(name);
  if (device.kind() == DeviceKind::kCuda) return make_nccl_group(name, world_ranks, world_rank_, tag, device);
  MPI_Group world, members;
  MPI_Comm comm;
  TRI_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  TRI_MPI(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members));
  TRI_MPI(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &comm));
  TRI_MPI(MPI_Group_free(&members));
  TRI_MPI(MPI_Group_free(&world));
  return make_mpi_group(name, comm, device);
}

int run_job(int* argc, char*** argv, const std::function<int(Job&)>& body) {
  Job job(argc, argv);
  ExitCode code = static_cast<ExitCode>(1);  // an exception that is not ours is a bug
  try {
    return body(job);
  } catch (const Fatal& fatal) {
    log_error("{}", fatal.what());
    code = fatal.code();
  } catch (const std::exception& problem) {
    log_error("{}", problem.what());
  }
  job.end_all(code);
}

}  // namespace tri
