// Collectives of MpiGroup, and an axis' gathers and reduces with every transport, compared with sums computed in the
// test, for every group size up to the number of ranks.
#include <mpi.h>
#include <sys/mman.h>

#include <cmath>
#include <mutex>

#include "io/base/random.h"
#include "kernels/cpu/device.h"
#include "kernels/ops.h"
#include "lib/comm/peer/copies.h"
#include "lib/fault/stop_deadline.h"
#include "tests/mp/mp_test.h"

namespace {

// While `all_reduces` is set, all-reduces record their operands and complete without touching memory.
struct AllReduce {
  const float* data;
  int count;
};
std::mutex mutex;
std::vector<AllReduce>* all_reduces = nullptr;

void record_all_reduces(std::vector<AllReduce>* calls) {
  const std::lock_guard lock(mutex);
  all_reduces = calls;
}

}  // namespace

// Replaces MPI's function, whose implementation is PMPI_Iallreduce.
extern "C" int MPI_Iallreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* request) {
  {
    const std::lock_guard lock(mutex);
    if (all_reduces != nullptr) {
      all_reduces->push_back({static_cast<const float*>(recv), count});
      *request = MPI_REQUEST_NULL;
      return MPI_SUCCESS;
    }
  }
  return PMPI_Iallreduce(send, recv, count, type, op, comm, request);
}

namespace tri {
namespace {

float value_of(int rank, int64_t i) { return random_normal(static_cast<uint64_t>(rank) + 1, static_cast<uint64_t>(i)); }

// Runs `body(group, stream)` on ranks [0, size) for each group size.
template <class Body>
void for_each_size(Body body) {
  Job& job = *test_job();
  for (int size = 1; size <= job.world_size(); ++size) {
    if (job.world_rank() < size) {
      auto device = make_cpu_device();
      std::vector<int> ranks;
      for (int r = 0; r < size; ++r) ranks.push_back(r);
      auto group = job.make_group("test", ranks, size, *device);
      auto stream = device->make_stream("comm");
      body(*group, *stream);
    }
    job.barrier();
  }
}

TEST(MpiGroup, all_gather_collects_blocks_in_rank_order) {
  for_each_size([](CommGroup& group, Stream& stream) {
    for (const int64_t n : {1, 7, 1000, 70000}) {
      std::vector<float> own(n), all(n * group.size(), NAN);
      for (int64_t i = 0; i < n; ++i) own[i] = value_of(group.rank(), i);
      group.all_gather(Tensor(all.data(), Dtype::kF32, {n * group.size()}), Tensor(own.data(), Dtype::kF32, {n}),
                       stream);
      stream.synchronize();
      for (int r = 0; r < group.size(); ++r)
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(all[r * n + i], value_of(r, i));
    }
  });
}

TEST(MpiGroup, reduce_scatter_sums_in_rank_order_bit_for_bit) {
  for_each_size([](CommGroup& group, Stream& stream) {
    for (const int64_t n : {1, 7, 1000, 140001}) {
      const int64_t total = n * group.size();
      std::vector<float> mine(total);
      for (int64_t i = 0; i < total; ++i) mine[i] = value_of(group.rank(), i);
      const int64_t first = group.rank() * n;
      // In place: the result overwrites the local block.
      group.reduce_scatter(Tensor(mine.data() + first, Dtype::kF32, {n}), Tensor(mine.data(), Dtype::kF32, {total}),
                           stream);
      stream.synchronize();
      for (int64_t i = 0; i < n; ++i) {
        float sum = value_of(0, first + i);
        for (int r = 1; r < group.size(); ++r) sum += value_of(r, first + i);
        ASSERT_EQ(mine[first + i], sum);
      }
    }
  });
}

TEST(MpiGroup, all_reduce_of_more_elements_than_an_int_counts) {
  constexpr int64_t kElements = (int64_t{1} << 32) + 5;  // 5 as an int
  const size_t bytes = kElements * sizeof(float);
  // Only addresses: no page is touched.
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  for_each_size([&](CommGroup& group, Stream& stream) {
    if (group.size() == 1) return;  // exchanges nothing
    std::vector<AllReduce> calls;
    record_all_reduces(&calls);
    group.all_reduce(Tensor(memory, Dtype::kF32, {kElements}), ReduceOp::kMax, stream);
    stream.synchronize();
    record_all_reduces(nullptr);
    int64_t first = 0;
    for (const AllReduce& call : calls) {
      ASSERT_GT(call.count, 0);
      ASSERT_EQ(call.data, static_cast<float*>(memory) + first);
      first += call.count;
    }
    EXPECT_EQ(first, kElements);
  });
  munmap(memory, bytes);
}

TEST(MpiGroup, bf16_is_summed_in_fp32_and_rounded_once) {
  for_each_size([](CommGroup& group, Stream& stream) {
    const int64_t n = 333, total = n * group.size();
    std::vector<bf16> mine(total), out(n);
    for (int64_t i = 0; i < total; ++i) mine[i] = bf16(value_of(group.rank(), i));
    group.reduce_scatter(Tensor(out.data(), Dtype::kBF16, {n}), Tensor(mine.data(), Dtype::kBF16, {total}), stream);
    stream.synchronize();
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int r = 0; r < group.size(); ++r) sum += static_cast<float>(bf16(value_of(r, group.rank() * n + i)));
      ASSERT_EQ(out[i].bits, bf16(sum).bits);
    }
  });
}

TEST(MpiGroup, all_reduce_is_equal_on_all_members) {
  for_each_size([](CommGroup& group, Stream& stream) {
    for (const int64_t n : {1, 5, 1023, 100003}) {
      std::vector<float> data(n), largest(n);
      for (int64_t i = 0; i < n; ++i) data[i] = largest[i] = value_of(group.rank(), i);
      group.all_reduce(Tensor(data.data(), Dtype::kF32, {n}), ReduceOp::kSum, stream);
      group.all_reduce(Tensor(largest.data(), Dtype::kF32, {n}), ReduceOp::kMax, stream);
      stream.synchronize();
      std::vector<float> of_rank0 = data;
      group.broadcast(Tensor(of_rank0.data(), Dtype::kF32, {n}), 0, stream);
      stream.synchronize();
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        float top = value_of(0, i);
        for (int r = 0; r < group.size(); ++r) {
          sum += value_of(r, i);
          top = std::max(top, value_of(r, i));
        }
        ASSERT_NEAR(data[i], sum, 1e-5);
        ASSERT_EQ(largest[i], top);
        ASSERT_EQ(data[i], of_rank0[i]);
      }
    }
  });
}

// Member r sends 1000 · (r + 1) + peer elements to each peer, in two messages.
TEST(MpiGroup, exchange_sends_every_message_to_its_peer_in_order) {
  for_each_size([](CommGroup& group, Stream& stream) {
    std::vector<std::vector<float>> out, in;
    std::vector<CommGroup::Message> sends, recvs;
    const auto count_of = [](int from, int to) { return 1000 * (from + 1) + to; };
    out.reserve(static_cast<size_t>(2 * group.size()));
    in.reserve(out.capacity());
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      for (const int part : {1, 2}) {
        const int64_t sent = part * count_of(group.rank(), peer), received = part * count_of(peer, group.rank());
        out.emplace_back(static_cast<size_t>(sent));
        for (int64_t i = 0; i < sent; ++i)
          out.back()[static_cast<size_t>(i)] = value_of(group.rank(), part * 7 + peer + i);
        in.emplace_back(static_cast<size_t>(received), NAN);
        sends.push_back({Tensor(out.back().data(), Dtype::kF32, {sent}), peer});
        recvs.push_back({Tensor(in.back().data(), Dtype::kF32, {received}), peer});
      }
    }
    group.exchange(sends, recvs, stream);
    stream.synchronize();
    size_t message = 0;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      for (const int part : {1, 2}) {
        const std::vector<float>& received = in[message++];
        for (size_t i = 0; i < received.size(); ++i)
          ASSERT_EQ(received[i], value_of(peer, part * 7 + group.rank() + static_cast<int64_t>(i)));
      }
    }
    EXPECT_EQ(group.counts().exchanges, 1);
  });
}

TEST(MpiGroup, sends_on_independent_streams_cross_without_deadlock) {
  for_each_size([](CommGroup& group, Stream& stream) {
    if (group.size() < 2) return;
    auto device = make_cpu_device();
    auto recv_stream = device->make_stream("recv");
    constexpr int kMessages = 20;
    const int64_t n = 40000;  // above any eager limit: a send waits for its receive
    const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
    std::vector<float> out(n * kMessages), in(n * kMessages, NAN);
    for (int64_t i = 0; i < n * kMessages; ++i) out[i] = value_of(group.rank(), i);
    for (int m = 0; m < kMessages; ++m) {
      group.send(Tensor(out.data() + m * n, Dtype::kF32, {n}), next, stream);
      group.recv(Tensor(in.data() + m * n, Dtype::kF32, {n}), previous, *recv_stream);
    }
    stream.synchronize();
    recv_stream->synchronize();
    for (int64_t i = 0; i < n * kMessages; i += 997) ASSERT_EQ(in[i], value_of(previous, i));
    EXPECT_EQ(group.counts().sends, kMessages);
    EXPECT_EQ(group.counts().bytes, 2 * kMessages * n * 4);
  });
}

// A member's rows and partial sums, and their transfers.
class Member {
 public:
  static constexpr int64_t kRows = 7, kWidth = 300;  // per block

  enum class Transport { kCollectives, kPeerCopies };
  Member(const std::vector<int>& ranks, Transport transport) : size_(static_cast<int>(ranks.size())) {
    Job& job = *test_job();
    const auto allocate = [&](Arena& arena) {
      tensors_ = allocate_peer_copies("copies", size_, size_ * kRows * kWidth, Dtype::kF32, 2, arena);
      rows_ = arena.take("rows", Dtype::kF32, {size_ * kRows, kWidth});
      sum_ = arena.take("sum", Dtype::kF32, {kRows, kWidth});
    };
    Arena measuring;
    allocate(measuring);
    arena_ = std::make_unique<Arena>(*device_, measuring.used());
    allocate(*arena_);
    group_ = job.make_group("test", ranks, size_, *device_);
    GroupOnStream collectives(*group_, *streams_[1], *device_, TimeCategory::kTp);
    if (transport == Transport::kCollectives) {
      transfers_ = std::make_unique<CollectiveTransfers>(std::move(collectives), *device_);
    } else {
      peers_ = value_or_throw(PeerArenas::open(ranks, job, *device_, *arena_));
      transfers_ = std::make_unique<PeerCopyTransfers>(std::move(collectives), peers_->memory(), tensors_, *streams_[2],
                                                       *streams_[3], *device_);
    }
  }
  ~Member() {
    for (const auto& stream : streams_) stream->synchronize();
  }

  // Returns all rows, of which each member provides its own block.
  std::vector<float> gathered(const std::vector<float>& local) {
    poison();
    transfers_->begin_gather(rows_, compute());
    const Tensor block = transfers_->local_rows(rows_);
    compute().copy(block.data, local.data(), block.bytes());
    transfers_->start_gather(rows_, compute());
    transfers_->finish_gather(rows_, compute());
    return read(rows_);
  }
  // Returns the local block of the sum of the members' `partial`, sent in `num_splits`.
  std::vector<float> reduced(const std::vector<float>& partial, int num_splits) {
    poison();
    for (const RowBlock& block : transfers_->begin_reduce(rows_, {.num_splits = num_splits}, compute())) {
      compute().copy(block.out.data, partial.data() + block.first * kWidth, block.out.bytes());
      transfers_->send(block, compute());
    }
    sum_parts({.out = sum_, .parts = transfers_->finish_reduce(compute())}, compute());
    return read(sum_);
  }

 private:
  Stream& compute() { return *streams_[0]; }
  // Waits until all sent data has been read, then poisons the rows.
  void poison() {
    transfers_->wait_until_read(compute());
    compute().copy(rows_.data, nans_.data(), rows_.bytes());
  }
  std::vector<float> read(Tensor tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    compute().copy(values.data(), tensor.data, tensor.bytes());
    compute().synchronize();
    return values;
  }

  const int size_;
  std::unique_ptr<Device> device_ = open_test_device();
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<PeerArenas> peers_;
  std::unique_ptr<CommGroup> group_;
  std::unique_ptr<Stream> streams_[4] = {device_->make_stream("compute"), device_->make_stream("collectives"),
                                         device_->make_stream("copies"), device_->make_stream("arrivals")};
  PeerCopyTensors tensors_;
  Tensor rows_, sum_;
  const std::vector<float> nans_ = std::vector<float>(static_cast<size_t>(size_ * kRows * kWidth), NAN);
  std::unique_ptr<AxisTransfers> transfers_;
};

// Ranks receive a signal at different times, or not yet: the limit of the stop counts from the first of them.
TEST(StopDeadline, counts_from_the_first_signal_of_any_rank) {
  Job& job = *test_job();
  const auto at = StopSignals::Clock::now();
  const int last = job.world_size() - 1;
  std::optional<StopSignals::Clock::time_point> first;
  if (job.world_rank() != 0 || last == 0) first = at - std::chrono::seconds(10 * job.world_rank() + 5);
  EXPECT_DOUBLE_EQ(oldest_stop_age(job, first, at), 10.0 * last + 5);
  EXPECT_EQ(oldest_stop_age(job, at + std::chrono::seconds(1), at), 0.0);
}

TEST(AxisTransfers, gather_and_sum_the_same_rows_by_every_transport) {
  Job& job = *test_job();
  const auto number = [](int rank, int64_t i) { return static_cast<float>((rank * 97 + i * 31) % 1009 - 500); };
  constexpr int64_t kBlock = Member::kRows * Member::kWidth;
  for (int size = 2; size <= job.world_size(); ++size) {
    if (job.world_rank() < size) {
      std::vector<int> ranks;
      for (int r = 0; r < size; ++r) ranks.push_back(r);
      const int self = job.world_rank();
      std::vector<float> local, partial, all, sum;
      for (int64_t i = 0; i < kBlock; ++i) local.push_back(number(self, i));
      for (int64_t i = 0; i < size * kBlock; ++i) partial.push_back(number(self, i));
      for (int64_t i = 0; i < size * kBlock; ++i) all.push_back(number(static_cast<int>(i / kBlock), i % kBlock));
      for (int64_t i = self * kBlock; i < (self + 1) * kBlock; ++i) {
        sum.push_back(0);  // sums of whole numbers are exact in any order
        for (int r = 0; r < size; ++r) sum.back() += number(r, i);
      }
      for (const auto transport : {Member::Transport::kCollectives, Member::Transport::kPeerCopies}) {
        Member member(ranks, transport);
        for (int num_splits = 0; num_splits <= size; ++num_splits) {
          EXPECT_EQ(member.gathered(local), all) << size;
          EXPECT_EQ(member.reduced(partial, num_splits), sum) << size;
        }
      }
    }
    job.barrier();
  }
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
