// Gathers and reduces of rows between several ranks that live in one process: one host thread enqueues for all of them.
// Also run under ThreadSanitizer.
#include "lib/comm/row_exchange.h"

#include <gtest/gtest.h>

#include <atomic>

#include "io/base/random.h"
#include "kernels/cpu/device.h"
#include "lib/comm/transfer_hook.h"

namespace tri {
namespace {

constexpr int64_t kRows = 3, kWidth = 5;  // of a block

// A number that no other place or time has.
float value_of(int round, int rank, int64_t row, int64_t column) {
  return static_cast<float>(((round * 8 + rank) * 64 + row) * 8 + column);
}

struct Rank {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> copies, arrivals;
  RowExchangeTensors tensors;
  Tensor gathered, partial;
  std::unique_ptr<RowExchange> exchange;
};

std::vector<Rank> make_ranks(int size) {
  const auto allocate = [&](Arena& arena, Rank& rank) {
    rank.tensors = allocate_row_exchange("exchange", size, size * kRows * kWidth, Dtype::kF32, 2, arena);
    rank.gathered = arena.take("rows", Dtype::kF32, {size * kRows, kWidth});
    rank.partial = arena.take("rows", Dtype::kF32, {size * kRows, kWidth});
  };
  std::vector<Rank> ranks(static_cast<size_t>(size));
  PeerMemory peers;
  for (Rank& rank : ranks) {
    Arena measuring;
    allocate(measuring, rank);
    rank.arena = std::make_unique<Arena>(*rank.device, measuring.used());
    allocate(*rank.arena, rank);
    rank.compute = rank.device->make_stream("compute");
    peers.base.push_back(static_cast<char*>(rank.arena->memory()));
  }
  for (int r = 0; r < size; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    rank.copies = rank.device->make_stream("copies");
    rank.arrivals = rank.device->make_stream("arrivals");
    peers.rank = r;
    rank.exchange = std::make_unique<RowExchange>(peers, rank.tensors, *rank.copies, *rank.arrivals, *rank.device,
                                                  TimeCategory::kTp);
  }
  return ranks;
}

void gather(Rank& rank, int round, OverlapSplit split, std::atomic<int>& wrong) {
  RowExchange& exchange = *rank.exchange;
  const Tensor rows = rank.gathered;
  exchange.settle(*rank.compute);
  exchange.begin_gather(rows, *rank.compute);
  cpu_stream(*rank.compute).submit([=, self = exchange.rank()] {
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kWidth; ++c)
        rows.as<float>()[(self * kRows + r) * kWidth + c] = value_of(round, self, r, c);
  });
  exchange.start_gather(rows, *rank.compute);
  EXPECT_TRUE(exchange.gathering(rows));
  int64_t read = 0;
  for (const RowPiece& piece : exchange.pieces(rows, split)) {
    exchange.wait_piece(rows, piece, *rank.compute);
    read += piece.count;
    cpu_stream(*rank.compute).submit([=, &wrong] {
      for (int64_t r = piece.first; r < piece.first + piece.count; ++r)
        for (int64_t c = 0; c < kWidth; ++c)
          wrong += rows.as<float>()[r * kWidth + c] != value_of(round, static_cast<int>(r / kRows), r % kRows, c);
    });
  }
  EXPECT_EQ(read, rows[0]);
  exchange.finish_gather(rows, *rank.compute);
  EXPECT_FALSE(exchange.gathering(rows));
}

// Rank p's partial sum for place (o, r, c) is value_of(round, p, r, c) + o.
void reduce(Rank& rank, int round, OverlapSplit split, std::atomic<int>& wrong) {
  RowExchange& exchange = *rank.exchange;
  int64_t made = 0;
  exchange.settle(*rank.compute);
  for (const RowBlock& block : exchange.begin_reduce(rank.partial, split, *rank.compute)) {
    EXPECT_EQ(block.first, block.owners.front() * kRows);
    EXPECT_EQ(block.out[0], static_cast<int64_t>(block.owners.size()) * kRows);
    made += block.out[0];
    cpu_stream(*rank.compute).submit([=, self = exchange.rank()] {
      for (int64_t r = 0; r < block.out[0]; ++r)
        for (int64_t c = 0; c < kWidth; ++c)
          block.out.as<float>()[r * kWidth + c] =
              value_of(round, self, r % kRows, c) + static_cast<float>((block.first + r) / kRows);
    });
    exchange.send(block, *rank.compute);
  }
  EXPECT_EQ(made, rank.partial[0]);
  const Tensor parts = exchange.finish_reduce(*rank.compute);
  ASSERT_EQ(parts[0], exchange.size());
  cpu_stream(*rank.compute).submit([=, &wrong, self = exchange.rank()] {
    for (int p = 0; p < parts[0]; ++p)
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t c = 0; c < kWidth; ++c)
          wrong +=
              parts.as<float>()[(p * kRows + r) * kWidth + c] != value_of(round, p, r, c) + static_cast<float>(self);
  });
}

TEST(RowExchange, every_block_is_there_when_it_is_read_and_not_overwritten_before) {
  for (const bool late : {false, true}) {
    uint64_t transfers = 0;
    if (late)
      set_transfer_hook([&](Stream& stream) {
        const double chance = random_uniform(1, ++transfers);
        if (chance < 0.3) stream.idle(std::chrono::microseconds(static_cast<int>(chance * 1000)));
      });
    for (const int size : {2, 3, 4}) {
      std::atomic<int> wrong = 0;
      {
        std::vector<Rank> ranks = make_ranks(size);
        for (int round = 0; round < 60; ++round)
          for (Rank& rank : ranks) {
            const OverlapSplit split{.pieces = round % (size + 1), .direct = round % (size + 2) == 0};
            if (round % 3 != 1) gather(rank, round, split, wrong);
            if (round % 3 != 2) reduce(rank, round, split, wrong);
          }
        for (Rank& rank : ranks) {
          rank.compute->synchronize();
          rank.copies->synchronize();
          EXPECT_GT(rank.exchange->counts().bytes, 0);
        }
      }
      EXPECT_EQ(wrong, 0) << size << " ranks";
    }
    set_transfer_hook({});
  }
}

TEST(RowExchange, a_fault_ends_the_waits) {
  std::vector<Rank> ranks = make_ranks(2);
  std::atomic<int> wrong = 0;
  gather(ranks[0], 0, {}, wrong);  // rank 1 never answers
  ranks[0].device->raise_fault(std::make_exception_ptr(Fatal(ExitCode::kComm, "gone")));
  EXPECT_THROW(ranks[0].compute->synchronize(), Fatal);
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
  waits->wait_flag(flag, 1);  // three more to come
  cpu_stream(*waits).submit([&] { reached = true; });
  sets->set_flag(flag, 0);
  sets->idle(std::chrono::microseconds(100));
  sets->set_flag(flag, 1);
  waits->synchronize();
  EXPECT_TRUE(reached);
}

}  // namespace
}  // namespace tri
