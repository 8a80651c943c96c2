#include "lib/comm/row_exchange.h"

#include <algorithm>

#include "kernels/core/timeline.h"
#include "lib/comm/transfer_hook.h"

namespace tri {
namespace {
constexpr int kReady = 0, kArrived = 1;  // rows of the flags
}

RowExchangeTensors allocate_row_exchange(int tp, int64_t own_rows, int64_t width, Dtype dtype, Arena& arena) {
  RowExchangeTensors t;
  t.flags = arena.take("tp exchange", Dtype::kI32, {2, tp});
  for (Tensor& parts : t.incoming) parts = arena.take("tp exchange", dtype, {tp, own_rows, width});
  return t;
}

RowExchange::RowExchange(PeerMemory peers, RowExchangeTensors tensors, std::vector<Stream*> copies, Device& device)
    : peers_(std::move(peers)), tensors_(tensors), copies_(std::move(copies)), made_(device.make_event()) {
  TRI_REQUIRE(static_cast<int>(copies_.size()) == size() - 1, "{} streams to {} peers", copies_.size(), size() - 1);
  for (size_t i = 0; i < copies_.size(); ++i) sent_.push_back(device.make_event());
}

Tensor RowExchange::block(Tensor rows, int member) const {
  const int64_t own = rows[0] / size();
  return rows.rows(member * own, own);
}

uint32_t* RowExchange::flag(int row, int member) const {
  return reinterpret_cast<uint32_t*>(tensors_.flags.as<int32_t>()) + row * size() + member;
}

// Counts the operation and tells the peers that this rank is ready for it.
void RowExchange::begin(Stream& compute) {
  ++operation_;
  settle(compute);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    compute.set_flag(peers_.at(peer, flag(kReady, rank())), operation_);
  }
}

void RowExchange::settle(Stream& compute) {
  const SpendScope scope(compute, Spend::kTp);
  for (const auto& sent : sent_) compute.wait(*sent);
}

// After what compute has done so far: `src` to the place that this rank calls `own_place` in the peer's memory.
void RowExchange::push(int peer, void* own_place, const void* src, int64_t bytes) {
  Stream& copies = copies_to(peer);
  before_transfer(copies);
  counts_.bytes += bytes;
  copies.wait(*made_);
  copies.wait_flag(flag(kReady, peer), operation_);
  copies.copy(peers_.at(peer, static_cast<char*>(own_place)), src, bytes);
  copies.set_flag(peers_.at(peer, flag(kArrived, rank())), operation_);
  copies.record(sent_to(peer));
}

void RowExchange::begin_gather(Tensor rows, Stream& compute) {
  TRI_REQUIRE(!gathering(rows), "rows {} gathered twice at once", rows.shape_text());
  ++counts_.all_gathers;
  begin(compute);
}

void RowExchange::start_gather(Tensor rows, Stream& compute) {
  compute.record(*made_);
  const Tensor own = block(rows, rank());
  for (int step = 1; step < size(); ++step) push((rank() + step) % size(), own.data, own.data, own.bytes());
  gathers_.push_back({rows.data, operation_, std::vector<bool>(static_cast<size_t>(size()))});
  gathers_.back().waited[static_cast<size_t>(rank())] = true;
}

std::vector<int> RowExchange::arrival_order() const {
  std::vector<int> order;
  for (int step = 0; step < size(); ++step) order.push_back((rank() + size() - step) % size());
  return order;
}

bool RowExchange::gathering(Tensor rows) const {
  return std::any_of(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows.data; });
}

void RowExchange::wait_block(Tensor rows, int member, Stream& compute) {
  for (Gather& gather : gathers_) {
    if (gather.rows != rows.data || gather.waited[static_cast<size_t>(member)]) continue;
    const SpendScope scope(compute, Spend::kTp);
    compute.wait_flag(flag(kArrived, member), gather.operation);
    gather.waited[static_cast<size_t>(member)] = true;
  }
}

void RowExchange::finish_gather(Tensor rows, Stream& compute) {
  for (const int member : arrival_order()) wait_block(rows, member, compute);
  std::erase_if(gathers_, [&](const Gather& g) { return g.rows == rows.data; });
}

std::vector<RowBlock> RowExchange::begin_reduce(Tensor rows, Stream& compute) {
  ++counts_.reduce_scatters;
  begin(compute);
  reduce_ = operation_;
  turn_ ^= 1;
  std::vector<RowBlock> blocks;
  for (int step = 1; step <= size(); ++step) {
    const int owner = (rank() + step) % size();
    const Tensor place = block(rows, owner);
    const Tensor own_part = tensors_.incoming[turn_].rows(rank(), 1).view({place[0], place[1]});
    blocks.push_back({owner, owner * place[0], owner == rank() ? own_part : place});
  }
  return blocks;
}

void RowExchange::send(const RowBlock& block, Stream& compute) {
  if (block.owner == rank()) return;
  TRI_REQUIRE(reduce_ == operation_, "a block of reduce {} sent in operation {}", reduce_, operation_);
  compute.record(*made_);
  push(block.owner, tensors_.incoming[turn_].rows(rank(), 1).data, block.out.data, block.out.bytes());
}

Tensor RowExchange::finish_reduce(Stream& compute) {
  const SpendScope scope(compute, Spend::kTp);
  for (int step = 1; step < size(); ++step)
    compute.wait_flag(flag(kArrived, (rank() + size() - step) % size()), reduce_);
  return tensors_.incoming[turn_];
}

}  // namespace tri
