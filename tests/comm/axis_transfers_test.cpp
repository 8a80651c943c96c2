// Gathers and reduces of an axis with every transport, between several ranks of one process: one host thread enqueues
// for all of them. Also run under ThreadSanitizer.
#include "lib/comm/groups/axis_transfers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <thread>

#include "io/base/random.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/span_recorder.h"
#include "kernels/cpu/device.h"
#include "kernels/gemm_search.h"
#include "lib/comm/peer/copies.h"
#include "lib/tune/null_objects.h"
#include "tests/comm/local_collectives.h"
#include "tests/hangs/on_transfer.h"
#include "tests/hangs/stream_task.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr int64_t kRows = 3, kWidth = 5;  // per block

enum class Transport { kOneRank, kCollectives, kCollectivesOnCompute, kPeerCopies };

struct Case {
  Transport transport;
  int size;
};
constexpr Case kCases[] = {{Transport::kOneRank, 1},     {Transport::kCollectives, 2},
                           {Transport::kCollectives, 3}, {Transport::kCollectivesOnCompute, 3},
                           {Transport::kPeerCopies, 2},  {Transport::kPeerCopies, 3},
                           {Transport::kPeerCopies, 4}};

// Returns a number that is unique to its place and round.
float value_of(int round, int rank, int64_t row, int64_t column) {
  return static_cast<float>(((round * 8 + rank) * 64 + row) * 8 + column);
}

struct Rank {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Stream> compute, collectives, copies, arrivals;
  std::unique_ptr<CommGroup> group;
  PeerCopyTensors tensors;
  Tensor gathered, gathered_too, partial;
  std::unique_ptr<AxisTransfers> transfers;
};

std::vector<Rank> make_ranks(Case c, ChannelCounts counts = ChannelCounts::kMarked) {
  const auto allocate = [&](Arena& arena, Rank& rank) {
    rank.tensors = allocate_peer_copies("copies", c.size, c.size * kRows * kWidth, Dtype::kF32, 2, arena);
    for (Tensor* rows : {&rank.gathered, &rank.gathered_too, &rank.partial})
      *rows = arena.take("rows", Dtype::kF32, {c.size * kRows, kWidth});
  };
  std::vector<Rank> ranks(static_cast<size_t>(c.size));
  PeerMemory peers;
  for (Rank& rank : ranks) {
    Arena measuring;
    allocate(measuring, rank);
    rank.arena = std::make_unique<Arena>(*rank.device, measuring.used());
    allocate(*rank.arena, rank);
    peers.base.push_back(static_cast<char*>(rank.arena->memory()));
  }
  const auto place = std::make_shared<RendezvousPoint>(c.size);
  for (int r = 0; r < c.size; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    const auto stream = [&](const char* name) { return rank.device->make_stream(name); };
    rank.compute = stream("compute");
    rank.collectives = stream("collectives");
    const bool on_compute = c.transport == Transport::kCollectivesOnCompute;
    if (c.transport == Transport::kPeerCopies)
      rank.group = std::make_unique<NullGroup>(Axis{r, c.size});
    else
      rank.group = std::make_unique<LocalCollectives>(r, c.size, place);
    GroupOnStream collectives(*rank.group, on_compute ? *rank.compute : *rank.collectives, *rank.device,
                              TimeCategory::kTp);
    if (c.transport == Transport::kPeerCopies) {
      rank.copies = stream("copies");
      rank.arrivals = stream("arrivals");
      peers.rank = r;
      std::vector<int> all(static_cast<size_t>(c.size));
      std::iota(all.begin(), all.end(), 0);
      const ChannelProgress progress("copies", ChannelKind::kCopies, all, r, counts);
      rank.transfers = std::make_unique<PeerCopyTransfers>(std::move(collectives), peers, rank.tensors, *rank.copies,
                                                           *rank.arrivals, *rank.device, progress);
    } else if (c.transport == Transport::kOneRank) {
      rank.transfers = std::make_unique<OneRankTransfers>(std::move(collectives));
    } else {
      rank.transfers = std::make_unique<CollectiveTransfers>(std::move(collectives), *rank.device);
    }
  }
  return ranks;
}

void make_and_start(Rank& rank, Tensor rows, int round) {
  AxisTransfers& transfers = *rank.transfers;
  transfers.wait_until_read(*rank.compute);
  transfers.begin_gather(rows, *rank.compute);
  cpu_stream(*rank.compute).submit([local = transfers.local_rows(rows), round, self = transfers.rank()] {
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kWidth; ++c) local.as<float>()[r * kWidth + c] = value_of(round, self, r, c);
  });
  transfers.start_gather(rows, *rank.compute);
  EXPECT_EQ(transfers.gathering(rows), transfers.size() > 1);
}

void read(Rank& rank, Tensor rows, int round, OverlapSplit split, std::atomic<int>& wrong) {
  AxisTransfers& transfers = *rank.transfers;
  int64_t read = 0;
  for (const RowSplit& part : transfers.splits(rows, split)) {
    transfers.wait_split(rows, part, *rank.compute);
    read += part.count;
    cpu_stream(*rank.compute).submit([=, &wrong] {
      for (int64_t r = part.first; r < part.first + part.count; ++r)
        for (int64_t c = 0; c < kWidth; ++c)
          wrong += rows.as<float>()[r * kWidth + c] != value_of(round, static_cast<int>(r / kRows), r % kRows, c);
    });
  }
  EXPECT_EQ(read, rows[0]);
  transfers.finish_gather(rows, *rank.compute);
  EXPECT_FALSE(transfers.gathering(rows));
  EXPECT_EQ(transfers.splits(rows, split).size(), 1u) << "nothing is on its way";
}

// Rank p's partial sum for place (o, r, c) is value_of(round, p, r, c) + o. One part holds the sum; several, one each.
void reduce(Rank& rank, int round, OverlapSplit split, std::atomic<int>& wrong) {
  AxisTransfers& transfers = *rank.transfers;
  int64_t made = 0;
  transfers.wait_until_read(*rank.compute);
  for (const RowBlock& block : transfers.begin_reduce(rank.partial, split, *rank.compute)) {
    EXPECT_EQ(block.first, block.owners.empty() ? 0 : block.owners.front() * kRows);
    made += block.out[0];
    cpu_stream(*rank.compute).submit([=, self = transfers.rank()] {
      for (int64_t r = 0; r < block.out[0]; ++r)
        for (int64_t c = 0; c < kWidth; ++c)
          block.out.as<float>()[r * kWidth + c] =
              value_of(round, self, r % kRows, c) + static_cast<float>((block.first + r) / kRows);
    });
    transfers.send(block, *rank.compute);
  }
  EXPECT_EQ(made, rank.partial[0]);
  const Tensor parts = transfers.finish_reduce(*rank.compute);
  ASSERT_TRUE(parts[0] == 1 || parts[0] == transfers.size()) << parts.shape_text();
  ASSERT_EQ(parts.shape_text(), Tensor(nullptr, Dtype::kF32, {parts[0], kRows, kWidth}).shape_text());
  cpu_stream(*rank.compute).submit([=, &wrong, self = transfers.rank(), size = transfers.size()] {
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kWidth; ++c) {
        float sum = 0;
        for (int p = 0; p < size; ++p) {
          const float expected = value_of(round, p, r, c) + static_cast<float>(self);
          sum += expected;
          if (parts[0] > 1) wrong += parts.as<float>()[(p * kRows + r) * kWidth + c] != expected;
        }
        if (parts[0] == 1) wrong += parts.as<float>()[r * kWidth + c] != sum;
      }
  });
}

void synchronize(std::vector<Rank>& ranks) {
  for (Rank& rank : ranks)
    for (Stream* stream : {rank.compute.get(), rank.collectives.get(), rank.copies.get()})
      if (stream != nullptr) stream->synchronize();
}

TEST(AxisTransfers, every_block_is_there_when_it_is_read_and_not_overwritten_before) {
  for (const bool late : {false, true}) {
    uint64_t transfers = 0;
    const auto sometimes_idle = [&](Stream& stream) {
      const double chance = random_uniform(1, ++transfers);
      if (chance < 0.3) idle(stream, std::chrono::microseconds(static_cast<int>(chance * 1000)));
    };
    std::optional<OnTransfer> on_transfer;
    if (late) on_transfer.emplace(sometimes_idle);
    for (const Case& c : kCases) {
      std::atomic<int> wrong = 0;
      {
        std::vector<Rank> ranks = make_ranks(c);
        for (int round = 0; round < 60; ++round)
          for (Rank& rank : ranks) {
            const OverlapSplit split{.num_splits = round % (c.size + 1), .direct = round % (c.size + 2) == 0};
            if (round % 3 != 1) {
              make_and_start(rank, rank.gathered, round);
              read(rank, rank.gathered, round, split, wrong);
            }
            if (late) sometimes_idle(*rank.compute);  // blocks that a GEMM writes to a peer are not transfers
            if (round % 3 != 2) reduce(rank, round, split, wrong);
          }
        synchronize(ranks);
        for (Rank& rank : ranks) {
          const CommCounts counts = rank.transfers->counts();
          EXPECT_EQ(counts.all_gathers, c.size > 1 ? 40 : 0);
          EXPECT_EQ(counts.reduce_scatters, c.size > 1 ? 40 : 0);
          EXPECT_EQ(counts.bytes > 0, c.size > 1);
        }
      }
      EXPECT_EQ(wrong, 0) << static_cast<int>(c.transport) << " of " << c.size << " ranks";
    }
    EXPECT_EQ(transfers > 0, late);
  }
}

TEST(AxisTransfers, several_gathers_and_a_reduce_are_in_flight_at_once) {
  for (const Case& c : kCases) {
    std::atomic<int> wrong = 0;
    {
      std::vector<Rank> ranks = make_ranks(c);
      for (int round = 0; round < 40; ++round)
        for (Rank& rank : ranks) {
          const bool in_order = round % 2 == 0;
          make_and_start(rank, rank.gathered, round);
          make_and_start(rank, rank.gathered_too, round + 100);
          reduce(rank, round, {.num_splits = round % (c.size + 1)}, wrong);
          if (in_order) read(rank, rank.gathered, round, {}, wrong);
          read(rank, rank.gathered_too, round + 100, {}, wrong);
          if (!in_order) read(rank, rank.gathered, round, {}, wrong);
        }
      synchronize(ranks);
    }
    EXPECT_EQ(wrong, 0) << static_cast<int>(c.transport) << " of " << c.size << " ranks";
  }
}

// A recorder of what layers enqueue sees the splits and blocks of the real transfers; nothing waits or moves.
TEST(AxisTransfers, the_null_object_has_the_same_splits_and_moves_nothing) {
  for (const Case& c : kCases) {
    std::vector<Rank> ranks = make_ranks(c);
    std::atomic<int> wrong = 0;
    for (Rank& rank : ranks) make_and_start(rank, rank.gathered, 7);
    const Rank& last = ranks.back();
    const Tensor rows = last.gathered;
    const std::vector<RowSplit> splits = last.transfers->splits(rows, {});
    for (Rank& rank : ranks) read(rank, rank.gathered, 7, {}, wrong);
    synchronize(ranks);
    const std::string before(static_cast<const char*>(last.arena->memory()), static_cast<size_t>(last.arena->used()));

    GemmRecorder recorder;
    NullGroup nothing(Axis{c.size - 1, c.size});
    const auto null_object =
        last.transfers->null_transfers(GroupOnStream(nothing, recorder, *last.device, TimeCategory::kTp), *last.device);
    null_object->begin_gather(rows, recorder);
    null_object->start_gather(rows, recorder);
    const std::vector<RowSplit> null_splits = null_object->splits(rows, {});
    ASSERT_EQ(null_splits.size(), splits.size());
    for (size_t i = 0; i < splits.size(); ++i) {
      EXPECT_EQ(null_splits[i].first, splits[i].first);
      EXPECT_EQ(null_splits[i].count, splits[i].count);
      null_object->wait_split(rows, null_splits[i], recorder);
    }
    null_object->finish_gather(rows, recorder);
    for (const RowBlock& block : null_object->begin_reduce(last.partial, {.direct = true}, recorder))
      null_object->send(block, recorder);
    const Tensor parts = null_object->finish_reduce(recorder);
    EXPECT_EQ(parts[0], c.transport == Transport::kPeerCopies ? c.size : 1);
    EXPECT_EQ(before, std::string(static_cast<const char*>(last.arena->memory()), before.size()));
    EXPECT_EQ(wrong, 0);
  }
}

TEST(PeerCopyTransfers, a_fault_ends_the_waits) {
  std::vector<Rank> ranks = make_ranks({Transport::kPeerCopies, 2});
  std::atomic<int> wrong = 0;
  make_and_start(ranks[0], ranks[0].gathered, 0);  // rank 1 never answers
  read(ranks[0], ranks[0].gathered, 0, {}, wrong);
  cpu_stream(*ranks[0].collectives).submit([] { throw Fatal(ExitCode::kComm, "gone"); });
  EXPECT_THROW(ranks[0].compute->synchronize(), Fatal);
}

// In the flight recorder of a process with several ranks, as here, each rank has its own channel.
class CopiesAreRecorded : public testing::Test {
 protected:
  CopiesAreRecorded() {
    setenv("TRIREME_BLACK_BOXES", folder_.path().c_str(), 1);
    recorder_ =
        std::move(FlightRecorder::create({.world_rank = 0, .world_size = 3, .attempt = "copies", .max_actions = 8}))
            .value();
    of_process_ = std::make_unique<ProcessFlightRecorder>(recorder_.get());
    ranks_ = make_ranks({Transport::kPeerCopies, 3}, ChannelCounts::kRead);
    for (const Rank& rank : ranks_) streams_.push_back(rank.device->make_stream("progress"));
  }
  ~CopiesAreRecorded() override { unsetenv("TRIREME_BLACK_BOXES"); }

  // Reads joined, sent and completed of a rank until they are `expected`, for at most ten seconds.
  void expect(size_t rank, std::array<uint32_t, 3> expected) {
    HostBuffer<uint32_t> words(*ranks_[rank].device, 6);
    const flight::Channel& channel = recorder_->image().channels[rank];
    std::array<uint32_t, 3> counts{};
    for (int turn = 0; turn < 2000; ++turn) {
      ranks_[rank].transfers->read_progress(*streams_[rank], words);
      counts = {channel.joined, channel.sent, channel.completed};
      if (counts == expected) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(counts, expected) << "rank " << rank;
  }

  TemporaryFolder folder_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<ProcessFlightRecorder> of_process_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

// Each counter advances exactly as far as the flags show: the wait graph is built from them.
TEST_F(CopiesAreRecorded, progress_is_read_from_the_flags) {
  std::atomic<int> wrong = 0;
  for (size_t rank : {0, 1, 2}) expect(rank, {0, 0, 0});
  for (Rank& rank : ranks_) make_and_start(rank, rank.gathered, 0);
  for (size_t rank : {0, 1, 2}) expect(rank, {1, 1, 1});
  for (Rank& rank : ranks_) read(rank, rank.gathered, 0, {}, wrong);

  // Rank 2 is not ready: rank 0 has joined and sends its block to rank 1 but not to rank 2.
  make_and_start(ranks_[0], ranks_[0].gathered, 1);
  make_and_start(ranks_[1], ranks_[1].gathered, 1);
  for (size_t rank : {0, 1}) expect(rank, {2, 1, 1});
  expect(2, {1, 1, 1});
  EXPECT_EQ(recorder_->image().channels[0].enqueued, 2u);
  EXPECT_EQ(recorder_->image().channels[2].enqueued, 1u);

  // Rank 2 is ready but sends nothing: the others have sent everything and wait for its blocks.
  Rank& late = ranks_[2];
  late.transfers->begin_gather(late.gathered, *late.compute);
  for (size_t rank : {0, 1}) expect(rank, {2, 2, 1});
  expect(2, {2, 1, 2});
  EXPECT_EQ(recorder_->image().channels[2].whole, 1u) << "its streams do not wait";

  late.transfers->start_gather(late.gathered, *late.compute);
  for (size_t rank : {0, 1, 2}) expect(rank, {2, 2, 2});
  EXPECT_EQ(recorder_->image().channels[2].whole, 2u);
  synchronize(ranks_);
  for (Rank& rank : ranks_) rank.transfers->finish_gather(rank.gathered, *rank.compute);
  synchronize(ranks_);
}

// The copies appear although their streams mark no counter.
TEST_F(CopiesAreRecorded, a_timeline_has_copies_whose_progress_is_read) {
  std::vector<std::unique_ptr<SpanRecorder>> recorders;
  for (Rank& rank : ranks_) {
    recorders.push_back(std::make_unique<SpanRecorder>(*rank.device, 100));
    for (Stream* stream : {rank.compute.get(), rank.copies.get(), rank.arrivals.get()})
      recorders.back()->follow(*stream);
    recorders.back()->begin_step(1, *rank.compute);
  }
  for (Rank& rank : ranks_) make_and_start(rank, rank.gathered, 0);
  std::atomic<int> wrong = 0;
  for (Rank& rank : ranks_) read(rank, rank.gathered, 0, {}, wrong);
  synchronize(ranks_);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::array<int, 3> counts{};
    for (const SpanRecorder::Transfer& transfer : recorders[rank]->take().transfers) {
      ++counts[static_cast<size_t>(transfer.mark)];
      EXPECT_EQ(transfer.channel, rank);
      EXPECT_EQ(transfer.sequence, 1u);
    }
    EXPECT_EQ(counts, (std::array<int, 3>{1, 1, 1})) << "rank " << rank;
    EXPECT_EQ(recorder_->image().channels[rank].joined, 0u) << "marked as well";
  }
}

TEST(Flags, count_modulo_2_to_the_32) {
  auto device = make_cpu_device();
  auto sets = device->make_stream("sets"), waits = device->make_stream("waits");
  Arena arena(*device, 256);
  auto* flag = reinterpret_cast<uint32_t*>(arena.take("flag", Dtype::kI32, {1}).as<int32_t>());
  sets->set_flag(flag, 0xfffffffeU);
  sets->synchronize();
  waits->wait_flag(flag, 0xfffffffdU);  // reached
  waits->synchronize();
  bool reached = false;
  waits->wait_flag(flag, 1);  // three more are needed
  cpu_stream(*waits).submit([&] { reached = true; });
  sets->set_flag(flag, 0);
  idle(*sets, std::chrono::microseconds(100));
  sets->set_flag(flag, 1);
  waits->synchronize();
  EXPECT_TRUE(reached);
}

// Polling threads would wake up thousands of times per second and take time from ranks that compute.
TEST(Flags, waiting_for_one_wakes_the_thread_seldom) {
  const auto switches = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  auto device = make_cpu_device();
  auto sets = device->make_stream("sets"), waits = device->make_stream("waits");
  Arena arena(*device, 256);
  auto* flag = reinterpret_cast<uint32_t*>(arena.take("flag", Dtype::kI32, {1}).as<int32_t>());
  const auto start = std::chrono::steady_clock::now();
  const auto before = switches();
  waits->wait_flag(flag, 1);
  idle(*sets, std::chrono::milliseconds(300));
  sets->set_flag(flag, 1);
  waits->synchronize();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(static_cast<double>(switches() - before), 50 + 300 * seconds);
}

TEST(Flags, a_fault_ends_the_wait_for_one) {
  auto device = make_cpu_device();
  auto waits = device->make_stream("waits");
  Arena arena(*device, 256);
  waits->wait_flag(reinterpret_cast<uint32_t*>(arena.take("flag", Dtype::kI32, {1}).as<int32_t>()), 1);
  const auto other = device->make_stream("other");
  cpu_stream(*other).submit([] { throw Fatal(ExitCode::kComm, "a peer is gone"); });
  EXPECT_THROW(waits->synchronize(), Fatal);
}

}  // namespace
}  // namespace tri
