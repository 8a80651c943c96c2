// Collectives as direct exchanges of segments between the members. Every sum is taken in rank order, whatever arrives
// first (bf16 is summed in fp32 and rounded once), so results are bit-identical from run to run. Waits poll with
// growing pauses instead of spinning inside MPI, because ranks may outnumber cores, and end after a fault.
#include "lib/comm/groups/mpi_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/cpu/device.h"
#include "lib/comm/host/mpi_check.h"

namespace tri {
namespace {

constexpr int64_t kShardElements = 64 * 1024;  // of a reduction: bounds the scratch memory
constexpr int64_t kMaxMessageElements = kMaxMessageBytes / static_cast<int64_t>(sizeof(float));
constexpr int kTag = 1;

template <class T>
void add_segment(float* sum, const T* part, int64_t count, bool first) {
  for (int64_t i = 0; i < count; ++i)
    sum[i] = first ? static_cast<float>(part[i]) : sum[i] + static_cast<float>(part[i]);
}

class MpiGroup final : public CommGroup {
 public:
  MpiGroup(const std::string& name, MPI_Comm comm, int rank, int size, Device& device)
      : CommGroup(name, rank, size), comm_(comm), device_(device) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    sum_.resize(kShardElements);
    parts_.resize(static_cast<size_t>(size) * kShardElements * sizeof(float));
  }
  ~MpiGroup() override { MPI_Comm_free(&comm_); }

 private:
  void do_all_gather(Tensor out, Tensor inp, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      char* base = static_cast<char*>(out.data);
      char* local = base + rank() * inp.bytes();
      if (local != inp.data) std::memcpy(local, inp.data, static_cast<size_t>(inp.bytes()));
      exchange_blocks(base, inp.bytes());
    });
  }
  void do_reduce_scatter(Tensor out, Tensor inp, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      const int64_t block = out.numel();
      if (inp.dtype == Dtype::kF32) return reduce_blocks<float>(out.as<float>(), inp.as<float>(), block);
      reduce_blocks<bf16>(out.as<bf16>(), inp.as<bf16>(), block);
    });
  }
  void do_all_reduce(Tensor inout, ReduceOp op, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      TRI_REQUIRE(inout.dtype == Dtype::kF32, "{}: all-reduce of {}, which is not f32", name(), inout.shape_text());
      float* data = inout.as<float>();
      const int64_t count = inout.numel();
      const int64_t block = count / size();
      // Large sums reduce local blocks, then gather them. Their remainder and small tensors use MPI itself.
      const bool split = op == ReduceOp::kSum && block >= 1024;
      if (split) {
        reduce_blocks<float>(data + rank() * block, data, block);
        exchange_blocks(reinterpret_cast<char*>(data), block * static_cast<int64_t>(sizeof(float)));
      }
      for (int64_t first = split ? block * size() : 0; first < count; first += kMaxMessageElements) {
        MPI_Request request;
        TRI_MPI(MPI_Iallreduce(MPI_IN_PLACE, data + first,
                               static_cast<int>(std::min(kMaxMessageElements, count - first)), MPI_FLOAT,
                               op == ReduceOp::kSum ? MPI_SUM : MPI_MAX, comm_, &request));
        wait_all({request});
      }
    });
  }
  void do_broadcast(Tensor inout, int root, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      for (int64_t first = 0; first < inout.bytes(); first += kMaxMessageBytes) {
        MPI_Request request;
        TRI_MPI(MPI_Ibcast(static_cast<char*>(inout.data) + first,
                           static_cast<int>(std::min(kMaxMessageBytes, inout.bytes() - first)), MPI_BYTE, root, comm_,
                           &request));
        wait_all({request});
      }
    });
  }
  void do_send(Tensor tensor, int peer, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      std::vector<MPI_Request> requests;
      send_bytes(static_cast<char*>(tensor.data), tensor.bytes(), peer, requests);
      wait_all(std::move(requests));
    });
  }
  void do_recv(Tensor tensor, int peer, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      std::vector<MPI_Request> requests;
      recv_bytes(static_cast<char*>(tensor.data), tensor.bytes(), peer, requests);
      wait_all(std::move(requests));
    });
  }
  void do_exchange(const std::vector<Message>& sends, const std::vector<Message>& recvs, Stream& stream) override {
    cpu_stream(stream).submit([=, this] {
      std::vector<MPI_Request> requests;
      for (const Message& m : recvs) recv_bytes(static_cast<char*>(m.tensor.data), m.tensor.bytes(), m.peer, requests);
      for (const Message& m : sends) send_bytes(static_cast<char*>(m.tensor.data), m.tensor.bytes(), m.peer, requests);
      wait_all(std::move(requests));
    });
  }

  void send_bytes(const char* data, int64_t bytes, int peer, std::vector<MPI_Request>& requests) {
    for (int64_t first = 0; first < bytes; first += kMaxMessageBytes)
      TRI_MPI(MPI_Isend(data + first, static_cast<int>(std::min(kMaxMessageBytes, bytes - first)), MPI_BYTE, peer, kTag,
                        comm_, &requests.emplace_back()));
  }
  void recv_bytes(char* data, int64_t bytes, int peer, std::vector<MPI_Request>& requests) {
    for (int64_t first = 0; first < bytes; first += kMaxMessageBytes)
      TRI_MPI(MPI_Irecv(data + first, static_cast<int>(std::min(kMaxMessageBytes, bytes - first)), MPI_BYTE, peer, kTag,
                        comm_, &requests.emplace_back()));
  }

  // `base` holds `size` blocks, of which the local one is filled. Fills the others.
  void exchange_blocks(char* base, int64_t block_bytes) {
    std::vector<MPI_Request> requests;
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + size() - step) % size();
      recv_bytes(base + from * block_bytes, block_bytes, from, requests);
    }
    for (int step = 1; step < size(); ++step)
      send_bytes(base + rank() * block_bytes, block_bytes, (rank() + step) % size(), requests);
    wait_all(std::move(requests));
  }

  // out (block) = sum over members of their block `rank()` of inp (size, block), segment by segment.
  template <class T>
  void reduce_blocks(T* out, const T* inp, int64_t block) {
    T* parts = reinterpret_cast<T*>(parts_.data());
    for (int64_t first = 0; first < block; first += kShardElements) {
      const int64_t count = std::min(kShardElements, block - first);
      std::vector<MPI_Request> requests;
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + size() - step) % size();
        recv_bytes(reinterpret_cast<char*>(parts + from * kShardElements), count * static_cast<int64_t>(sizeof(T)),
                   from, requests);
      }
      for (int step = 1; step < size(); ++step) {
        const int to = (rank() + step) % size();
        send_bytes(reinterpret_cast<const char*>(inp + to * block + first), count * static_cast<int64_t>(sizeof(T)), to,
                   requests);
      }
      wait_all(std::move(requests));
      for (int r = 0; r < size(); ++r) {
        const T* part = r == rank() ? inp + r * block + first : parts + r * kShardElements;
        add_segment(sum_.data(), part, count, r == 0);
      }
      for (int64_t i = 0; i < count; ++i) out[first + i] = T(sum_[static_cast<size_t>(i)]);
    }
  }

  void wait_all(std::vector<MPI_Request> requests) {
    constexpr int kYields = 20;
    std::chrono::microseconds pause{10};
    for (int poll = 0;; ++poll) {
      int done = 0;
      TRI_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
      if (done) return;
      if (device_.faulted())
        throw Fatal(ExitCode::kComm, fmt::format("{}: aborted after a fault of this rank's device", name()),
                    Cause::kPeer);
      if (poll < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 5 / 4, std::chrono::microseconds{400});
      }
    }
  }

  MPI_Comm comm_;
  Device& device_;
  std::vector<float> sum_;   // (kShardElements)
  std::vector<char> parts_;  // (size, kShardElements) of the reduced type
};

}  // namespace

std::unique_ptr<CommGroup> make_mpi_group(const std::string& name, MPI_Comm comm, Device& device) {
  int rank = 0, size = 1;
  TRI_MPI(MPI_Comm_rank(comm, &rank));
  TRI_MPI(MPI_Comm_size(comm, &size));
  return std::make_unique<MpiGroup>(name, comm, rank, size, device);
}

}  // namespace tri
