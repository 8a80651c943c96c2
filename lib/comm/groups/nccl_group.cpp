#include "lib/comm/groups/nccl_group.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "kernels/cuda/stream.h"
#include "lib/comm/host/bootstrap.h"

namespace tri {
namespace {

void nccl_check(ncclResult_t result, const char* call, const std::string& group) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Fatal(
      ExitCode::kComm,
      fmt::format("group {}: {}: {}: {}", group, std::string_view(call).substr(0, std::string_view(call).find('(')),
                  ncclGetErrorString(result), ncclGetLastError(nullptr)),
      result == ncclRemoteError ? Cause::kPeer : Cause::kHere);
}
#define TRI_NCCL(call) nccl_check((call), #call, name())

ncclDataType_t nccl_type(Dtype dtype) {
  if (is_fp8(dtype)) return ncclUint8;  // moved, never summed
  return dtype == Dtype::kF32 ? ncclFloat32 : dtype == Dtype::kBF16 ? ncclBfloat16 : ncclInt32;
}

// A communicator, which groups of the same ranks may share.
struct Communicator {
  Communicator() = default;
  ~Communicator() {
    if (comm == nullptr) return;
    if (!connected) {
      ncclCommAbort(comm);
      return;
    }
    ncclCommFinalize(comm);
    ncclResult_t state = ncclInProgress;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
         state == ncclInProgress && std::chrono::steady_clock::now() < end;)
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
    ncclCommDestroy(comm);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t comm = nullptr;
  bool connected = false;
};

// The communicator is nonblocking: a call in progress is polled, with this program's own timeout.
class NcclGroup final : public CommGroup {
 public:
  NcclGroup(const std::string& group_name, int rank, int size, const ncclUniqueId& id, Device& device,
            double connect_seconds)
      : CommGroup(group_name, rank, size),
        communicator_(std::make_shared<Communicator>()),
        device_(device),
        connect_seconds_(connect_seconds) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    TRI_NCCL(ncclCommInitRankConfig(&communicator_->comm, size, id, rank, &config));
    wait_for_completion("ncclCommInitRankConfig");
    connect();
    communicator_->connected = true;
    watch();
  }
  // Uses the communicator of `other`, from the same stream.
  NcclGroup(const std::string& group_name, const NcclGroup& other)
      : CommGroup(group_name, other.rank(), other.size()),
        communicator_(other.communicator_),
        device_(other.device_),
        connect_seconds_(other.connect_seconds_) {
    watch();
  }
  ~NcclGroup() override { device_.unwatch(this); }

 private:
  void watch() {
    device_.watch(this, [this] {
      ncclResult_t state = ncclSuccess;
      nccl_check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", name());
      nccl_check(state, "asynchronous error", name());
    });
  }

  // Opens every connection now. NCCL would otherwise open one at its first use and wait for the peer's host, which may
  // itself be waiting in the middle of a step.
  void connect() {
    const auto stream = device_.make_stream("connect");
    const int64_t n = 64;
    void* memory = device_.allocate(static_cast<size_t>(2 * n * size()) * sizeof(float));
    const Tensor full(memory, Dtype::kF32, {n * size()});
    const Tensor part = Tensor(memory, Dtype::kF32, {2 * n * size()}).flat(n * size(), n);
    do_all_gather(full, part, *stream);
    do_reduce_scatter(part, full, *stream);
    do_all_reduce(part, ReduceOp::kSum, *stream);
    do_broadcast(part, 0, *stream);
    if (size() == 2) {  // a link between stages, used both ways
      for (const int sender : {0, 1})
        rank() == sender ? do_send(part, 1 - rank(), *stream) : do_recv(part, 1 - rank(), *stream);
    }
    stream->synchronize();
    device_.release(memory);
  }

  void do_all_gather(Tensor out, Tensor inp, Stream& stream) override {
    TRI_NCCL(ncclAllGather(inp.data, out.data, count(inp), nccl_type(inp.dtype), comm_, cuda_stream(stream)));
    wait_for_completion("ncclAllGather");
  }
  void do_reduce_scatter(Tensor out, Tensor inp, Stream& stream) override {
    TRI_NCCL(
        ncclReduceScatter(inp.data, out.data, count(out), nccl_type(inp.dtype), ncclSum, comm_, cuda_stream(stream)));
    wait_for_completion("ncclReduceScatter");
  }
  void do_all_reduce(Tensor inout, ReduceOp op, Stream& stream) override {
    TRI_NCCL(ncclAllReduce(inout.data, inout.data, count(inout), nccl_type(inout.dtype),
                           op == ReduceOp::kSum ? ncclSum : ncclMax, comm_, cuda_stream(stream)));
    wait_for_completion("ncclAllReduce");
  }
  void do_broadcast(Tensor inout, int root, Stream& stream) override {
    TRI_NCCL(
        ncclBroadcast(inout.data, inout.data, count(inout), nccl_type(inout.dtype), root, comm_, cuda_stream(stream)));
    wait_for_completion("ncclBroadcast");
  }
  void do_send(Tensor tensor, int peer, Stream& stream) override {
    TRI_NCCL(ncclSend(tensor.data, count(tensor), nccl_type(tensor.dtype), peer, comm_, cuda_stream(stream)));
    wait_for_completion("ncclSend");
  }
  void do_recv(Tensor tensor, int peer, Stream& stream) override {
    TRI_NCCL(ncclRecv(tensor.data, count(tensor), nccl_type(tensor.dtype), peer, comm_, cuda_stream(stream)));
    wait_for_completion("ncclRecv");
  }
  void do_exchange(const std::vector<Message>& sends, const std::vector<Message>& recvs, Stream& stream) override {
    TRI_NCCL(ncclGroupStart());
    for (const Message& m : recvs)
      TRI_NCCL(ncclRecv(m.tensor.data, count(m.tensor), nccl_type(m.tensor.dtype), m.peer, comm_, cuda_stream(stream)));
    for (const Message& m : sends)
      TRI_NCCL(ncclSend(m.tensor.data, count(m.tensor), nccl_type(m.tensor.dtype), m.peer, comm_, cuda_stream(stream)));
    TRI_NCCL(ncclGroupEnd());
    wait_for_completion("ncclGroupEnd");
  }

  static size_t count(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

  // Waits until the communicator has accepted the last call. Also reports errors of earlier asynchronous work. Once the
  // group is connected, the watchdog decides how long a slow peer may take (fault.step_seconds).
  void wait_for_completion(const char* call) {
    const auto start = std::chrono::steady_clock::now();
    const std::chrono::duration<double> limit(connect_seconds_);
    for (;;) {
      ncclResult_t state = ncclSuccess;
      nccl_check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", name());
      if (state == ncclSuccess) return;
      nccl_check(state, call, name());
      device_.rethrow_fault();
      if (!communicator_->connected && connect_seconds_ > 0 && std::chrono::steady_clock::now() - start > limit)
        throw Fatal(ExitCode::kComm, fmt::format("group {}: {} still in progress after fault.connect_seconds, {:g} s",
                                                 name(), call, connect_seconds_));
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  }

  const std::shared_ptr<Communicator> communicator_;
  const ncclComm_t& comm_ = communicator_->comm;
  Device& device_;
  const double connect_seconds_;  // limit for an NCCL call until the group is connected; 0: none
};

}  // namespace

std::unique_ptr<CommGroup> share_nccl_group(const std::string& name, const CommGroup& other) {
  return std::make_unique<NcclGroup>(name, dynamic_cast<const NcclGroup&>(other));
}

std::unique_ptr<CommGroup> make_nccl_group(const std::string& name, const std::vector<int>& world_ranks, int world_rank,
                                           int tag, Device& device, double connect_seconds) {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);  // open all algorithms' connections at init, not during a step
  const int rank =
      static_cast<int>(std::find(world_ranks.begin(), world_ranks.end(), world_rank) - world_ranks.begin());
  ncclUniqueId id{};
  if (rank == 0) nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId", name);
  broadcast_to_members(&id, sizeof id, world_ranks, tag);
  return std::make_unique<NcclGroup>(name, rank, static_cast<int>(world_ranks.size()), id, device, connect_seconds);
}

}  // namespace tri
