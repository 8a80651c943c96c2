#include "lib/comm/row_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/core/timeline.h"
#include "lib/comm/transfer_hook.h"

namespace tri {
namespace {

constexpr int kReady = 0, kArrived = 1;  // rows of the flags

// Members in the order of use as `pieces` groups: the first member alone, the rest spread evenly. In each group the
// members in the order of their rows, those side by side together.
std::vector<std::vector<int>> groups_of(const std::vector<int>& order, int pieces) {
  const int size = static_cast<int>(order.size());
  if (pieces == 1) {
    std::vector<int> all(order.size());
    std::iota(all.begin(), all.end(), 0);
    return {all};
  }
  std::vector<std::vector<int>> groups{{order.front()}};
  const int rest = size - 1, parts = std::min(pieces, size) - 1;
  for (int part = 0; part < parts; ++part) {
    std::vector<int> group(order.begin() + 1 + rest * part / parts, order.begin() + 1 + rest * (part + 1) / parts);
    std::sort(group.begin(), group.end());
    for (size_t i = 0; i < group.size(); ++i) {
      if (i == 0 || group[i] != group[i - 1] + 1) groups.emplace_back();
      groups.back().push_back(group[i]);
    }
  }
  return groups;
}

}  // namespace

RowExchangeTensors allocate_row_exchange(const std::string& name, int members, int64_t elements, Dtype dtype,
                                         int buffers, Arena& arena) {
  RowExchangeTensors t;
  t.flags = arena.take(name, Dtype::kI32, {2, members});
  for (int i = 0; i < buffers; ++i) t.incoming.push_back(arena.take(name, dtype, {elements}));
  return t;
}

RowExchange::RowExchange(PeerMemory peers, RowExchangeTensors tensors, Stream& copies, Stream& arrivals, Device& device,
                         TimeCategory category)
    : peers_(std::move(peers)),
      tensors_(tensors),
      copies_(copies),
      arrivals_(arrivals),
      device_(device),
      category_(category),
      made_(device.make_event()),
      sent_(device.make_event()),
      reduced_(device.make_event()) {}

Tensor RowExchange::block(Tensor rows, int member) const {
  const int64_t own = rows[0] / size();
  return rows.rows(member * own, own);
}

Tensor RowExchange::incoming(int member) const {
  Tensor part = own_rows_;
  part.data = static_cast<char*>(tensors_.incoming[turn_].data) + member * part.bytes();
  return part;
}

uint32_t* RowExchange::flag(int row, int member) const {
  return reinterpret_cast<uint32_t*>(tensors_.flags.as<int32_t>()) + row * size() + member;
}

// The blocks of all members are on their way at the same time, the one of `rank - 1` first.
std::vector<int> RowExchange::arrival_order() const {
  std::vector<int> order;
  for (int step = 0; step < size(); ++step) order.push_back((rank() + size() - step) % size());
  return order;
}

RowExchange::Gather* RowExchange::find(Tensor rows) {
  const auto found =
      std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows.data; });
  return found == gathers_.end() ? nullptr : &*found;
}

// Counts the operation and tells the peers that this rank is ready for it.
void RowExchange::begin(Stream& compute) {
  ++operation_;
  compute.record(*made_);
  copies_.wait(*made_);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copies_.set_flag(peers_.at(peer, flag(kReady, rank())), operation_);
  }
}

// Hardly ever waits, since what peers sent at the same time has arrived; so the timeline is spared its marks.
void RowExchange::settle(Stream& compute) { compute.wait(*sent_); }

// After what compute had done at the last record of made_: `src` to the place that this rank calls `own_place` in the
// peer's memory.
void RowExchange::push(int peer, void* own_place, const void* src, int64_t bytes) {
  before_transfer(copies_);
  counts_.bytes += bytes;
  copies_.wait_flag(flag(kReady, peer), operation_);
  copies_.copy(peers_.at(peer, static_cast<char*>(own_place)), src, bytes);
  copies_.set_flag(peers_.at(peer, flag(kArrived, rank())), operation_);
  copies_.record(*sent_);
}

void RowExchange::begin_gather(Tensor rows, Stream& compute) {
  TRI_REQUIRE(!gathering(rows), "rows {} gathered twice at once", rows.shape_text());
  ++counts_.all_gathers;
  begin(compute);
}

void RowExchange::start_gather(Tensor rows, Stream& compute) {
  compute.record(*made_);
  copies_.wait(*made_);
  const Tensor own = block(rows, rank());
  for (int step = 1; step < size(); ++step) push((rank() + step) % size(), own.data, own.data, own.bytes());

  Gather* gather = find(Tensor{});
  if (gather == nullptr) {
    gather = &gathers_.emplace_back();
    for (int member = 0; member < size(); ++member) gather->arrived.push_back(device_.make_event());
  }
  gather->rows = rows.data;
  gather->waited.assign(static_cast<size_t>(size()), false);
  for (const int member : arrival_order()) {
    if (member != rank()) {
      arrivals_.wait_flag(flag(kArrived, member), operation_);
      arrivals_.record(*gather->arrived[static_cast<size_t>(member)]);
    } else {
      gather->waited[static_cast<size_t>(member)] = true;
    }
  }
}

bool RowExchange::gathering(Tensor rows) const {
  return std::any_of(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows.data; });
}

std::vector<RowPiece> RowExchange::pieces(Tensor rows, OverlapSplit split) const {
  const int64_t own = rows[0] / size();
  std::vector<RowPiece> pieces;
  for (const auto& members : groups_of(arrival_order(), split.pieces == 0 ? size() : split.pieces))
    pieces.push_back({members.front() * own, static_cast<int64_t>(members.size()) * own, members});
  return pieces;
}

void RowExchange::wait_piece(Tensor rows, const RowPiece& piece, Stream& compute) {
  Gather* gather = find(rows);
  if (gather == nullptr) return;
  const auto waited = [&](int member) { return gather->waited[static_cast<size_t>(member)]; };
  if (std::all_of(piece.members.begin(), piece.members.end(), waited)) return;
  const TimeCategoryScope scope(compute, category_);
  for (const int member : piece.members) {
    if (waited(member)) continue;
    compute.wait(*gather->arrived[static_cast<size_t>(member)]);
    gather->waited[static_cast<size_t>(member)] = true;
  }
}

void RowExchange::finish_gather(Tensor rows, Stream& compute) {
  Gather* gather = find(rows);
  if (gather == nullptr) return;
  wait_piece(rows, {.members = arrival_order()}, compute);
  gather->rows = nullptr;
}

std::vector<RowBlock> RowExchange::begin_reduce(Tensor rows, OverlapSplit split, Stream& compute) {
  ++counts_.reduce_scatters;
  begin(compute);
  reduce_ = operation_;
  turn_ = (turn_ + 1) % tensors_.incoming.size();
  direct_ = split.direct;
  own_rows_ = block(rows, 0);
  TRI_REQUIRE(rows.bytes() <= tensors_.incoming[turn_].bytes(), "a reduce of {} into buffers of {}", rows.shape_text(),
              tensors_.incoming[turn_].shape_text());
  const int count = split.pieces == 0 || split.direct ? size() : split.pieces;
  std::vector<int> order;  // of making; the own block last, which groups_of wants first
  for (int step = 0; step < size(); ++step) order.push_back((rank() + step) % size());
  std::vector<std::vector<int>> groups = groups_of(order, count);
  std::rotate(groups.begin(), groups.begin() + (groups.size() > 1 ? 1 : 0), groups.end());

  const int64_t own = rows[0] / size();
  std::vector<RowBlock> blocks;
  for (const auto& owners : groups) {
    RowBlock block{.first = owners.front() * own,
                   .out = rows.rows(owners.front() * own, static_cast<int64_t>(owners.size()) * own),
                   .owners = owners};
    if (owners.size() == 1 && owners.front() == rank()) block.out = incoming(rank());
    if (owners.size() == 1 && owners.front() != rank() && direct_) {
      block.out = incoming(rank());
      block.out.data = peers_.at(owners.front(), static_cast<char*>(block.out.data));
    }
    blocks.push_back(std::move(block));
  }
  if (direct_) {
    const TimeCategoryScope scope(compute, category_);
    for (int step = 1; step < size(); ++step) compute.wait_flag(flag(kReady, (rank() + step) % size()), operation_);
  }
  return blocks;
}

void RowExchange::send(const RowBlock& block, Stream& compute) {
  TRI_REQUIRE(reduce_ == operation_, "a block of reduce {} sent in operation {}", reduce_, operation_);
  if (block.owners.size() == 1 && block.owners.front() == rank()) return;
  const int64_t own = block.out[0] / static_cast<int64_t>(block.owners.size());
  if (direct_) {
    before_transfer(compute);
    counts_.bytes += block.out.bytes();
    compute.set_flag(peers_.at(block.owners.front(), flag(kArrived, rank())), operation_);
    return;
  }
  compute.record(*made_);
  copies_.wait(*made_);
  for (int step = 1; step <= size(); ++step) {
    const int owner = (rank() + step) % size();
    const auto place = std::find(block.owners.begin(), block.owners.end(), owner) - block.owners.begin();
    if (place == static_cast<int64_t>(block.owners.size())) continue;
    const Tensor part = block.out.rows(place * own, own);
    const Tensor own_place = incoming(rank());
    if (owner != rank()) {
      push(owner, own_place.data, part.data, part.bytes());
      continue;
    }
    copies_.copy(own_place.data, part.data, part.bytes());
    copies_.record(*sent_);
  }
}

Tensor RowExchange::finish_reduce(Stream& compute) {
  for (int step = 1; step < size(); ++step)
    arrivals_.wait_flag(flag(kArrived, (rank() + size() - step) % size()), reduce_);
  arrivals_.record(*reduced_);
  const TimeCategoryScope scope(compute, category_);
  compute.wait(*reduced_);
  compute.wait(*sent_);  // the own part is copied as well
  Tensor parts = incoming(0);
  for (int d = parts.dims++; d > 0; --d) parts.shape[static_cast<size_t>(d)] = parts.shape[static_cast<size_t>(d) - 1];
  parts.shape[0] = size();
  return parts;
}

}  // namespace tri
