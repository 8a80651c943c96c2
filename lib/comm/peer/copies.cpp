#include "lib/comm/peer/copies.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "kernels/core/timeline.h"
#include "lib/comm/peer/peer_copy.h"

namespace tri {
namespace {

constexpr int kReady = 0, kArrived = 1;  // rows of the flags
constexpr size_t kCounts = 3;            // joined, sent, completed
constexpr int kReadMilliseconds = 1000;  // time limit for reading them

// Divides the members, in their order of use, into `num_splits` groups: the first member alone, the others spread
// evenly. Within each group, members are in row order, with adjacent rows together.
std::vector<std::vector<int>> groups_of(const std::vector<int>& order, int num_splits) {
  const int size = static_cast<int>(order.size());
  if (num_splits == 1) {
    std::vector<int> all(order.size());
    std::iota(all.begin(), all.end(), 0);
    return {all};
  }
  std::vector<std::vector<int>> groups{{order.front()}};
  const int rest = size - 1, parts = std::min(num_splits, size) - 1;
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

PeerCopyTensors allocate_peer_copies(const std::string& name, int members, int64_t elements, Dtype dtype, int buffers,
                                     Arena& arena) {
  PeerCopyTensors t;
  t.flags = arena.take(name, Dtype::kI32, {2, members});
  for (int i = 0; i < buffers; ++i) t.incoming.push_back(arena.take(name, dtype, {elements}));
  return t;
}

PeerCopyTransfers::PeerCopyTransfers(GroupOnStream collectives, PeerMemory peers, PeerCopyTensors tensors,
                                     Stream& copies, Stream& arrivals, Device& device, ChannelProgress progress)
    : AxisTransfers(std::move(collectives)),
      peers_(std::move(peers)),
      tensors_(std::move(tensors)),
      copies_(copies),
      arrivals_(arrivals),
      device_(device),
      made_(device.make_event()),
      sent_(device.make_event()),
      reduced_(device.make_event()),
      progress_(progress) {
  TRI_REQUIRE(peers_.size() == size() && peers_.rank == rank(),
              "member {} of a group of {} has the memory of member {} of a group of {}", rank(), size(), peers_.rank,
              peers_.size());
}

CommCounts PeerCopyTransfers::counts() const {
  CommCounts all = AxisTransfers::counts();
  all.all_gathers += counts_.all_gathers;
  all.reduce_scatters += counts_.reduce_scatters;
  all.bytes += counts_.bytes;
  return all;
}

Tensor PeerCopyTransfers::incoming(int member) const {
  Tensor part = part_;
  part.data = static_cast<char*>(tensors_.incoming[next_buffer_].data) + member * part.bytes();
  return part;
}

uint32_t* PeerCopyTransfers::flag(int row, int member) const {
  return reinterpret_cast<uint32_t*>(tensors_.flags.as<int32_t>()) + row * size() + member;
}

// All members' blocks are in transfer at the same time; the block of `rank - 1` arrives first.
std::vector<int> PeerCopyTransfers::arrival_order() const {
  std::vector<int> order;
  for (int step = 0; step < size(); ++step) order.push_back((rank() + size() - step) % size());
  return order;
}

PeerCopyTransfers::Gather* PeerCopyTransfers::find(Tensor rows) {
  const auto found =
      std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows.data; });
  return found == gathers_.end() ? nullptr : &*found;
}

// Counts the operation and signals to the peers that this rank is ready for it.
void PeerCopyTransfers::begin(ChannelOperation operation, int64_t bytes, Stream& stream) {
  ++operation_;
  progress_.enqueue(operation, bytes);
  stream.record(*made_);
  copies_.wait(*made_);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copies_.set_flag(peers_.at(peer, flag(kReady, rank())), operation_);
  }
  progress_.joined(copies_);
  begun_ = operation_;
  unsent_ = size() - 1;
}

// Records that `stream` has sent this many more blocks of the operation.
void PeerCopyTransfers::count_sent(int blocks, Stream& stream) {
  unsent_ -= blocks;
  if (unsent_ > 0) return;
  progress_.sent(stream);
  if (&stream == &copies_) given_ = operation_;
}

// Records that the arrivals' stream has waited for all blocks of `operation`, and so for those of all earlier
// operations: a member sends operations in order.
void PeerCopyTransfers::count_arrived(uint32_t operation) {
  if (static_cast<int32_t>(operation - completing_) <= 0) return;
  completing_ = operation;
  progress_.completed(arrivals_, operation);
  awaited_ = operation;
  progress_.whole(operation);
}

// Reads the flags: this rank's readiness and blocks are recorded in the peers' memory, the peers' blocks in its own. An
// idle stream has completed all its work, whether or not that succeeded.
void PeerCopyTransfers::read_progress(Stream& stream, HostBuffer<uint32_t>& words) {
  if (!progress_.wants_read() || stream.busy()) return;  // busy: an earlier call timed out
  const uint32_t begun = begun_, given = given_, awaited = awaited_;
  const bool copied = !copies_.busy(), arrived = !arrivals_.busy();
  const auto peers = static_cast<size_t>(size() - 1);
  TRI_REQUIRE(words.size() >= kCounts * peers, "{} words are too few for {} peers", words.size(), peers);
  for (size_t i = 0; i < peers; ++i) {
    const int peer = (rank() + 1 + static_cast<int>(i)) % size();
    const uint32_t* const sources[kCounts] = {peers_.at(peer, flag(kReady, rank())),
                                              peers_.at(peer, flag(kArrived, rank())), flag(kArrived, peer)};
    for (size_t count = 0; count < kCounts; ++count)
      stream.copy(words.data() + count * peers + i, sources[count], sizeof(uint32_t));
  }
  for (int turn = 0; stream.busy(); ++turn) {
    if (turn == kReadMilliseconds) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto lowest = [&](size_t count) {
    const uint32_t* const first = words.data() + count * peers;
    return *std::min_element(first, first + peers,
                             [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; });
  };
  const auto later = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0 ? a : b; };
  const uint32_t joined = copied ? later(lowest(0), begun) : lowest(0);
  // The next operation is joined only after all blocks of this one, including those that a peer has not received.
  const uint32_t sent = later(copied ? later(lowest(1), given) : lowest(1), joined - 1);
  progress_.read(joined, sent, arrived ? later(lowest(2), awaited) : lowest(2));
}

void PeerCopyTransfers::wait_until_read(Stream& stream) { stream.wait(*sent_); }

// Copies `src` to the place in the peer's memory that this rank calls `local_place`, after the work on the caller's
// stream at the last record of made_.
void PeerCopyTransfers::push(int peer, void* local_place, const void* src, int64_t bytes) {
  counts_.bytes += bytes;
  copy_to_peer({.to = peers_.at(peer, static_cast<char*>(local_place)),
                .from = src,
                .bytes = bytes,
                .ready = flag(kReady, peer),
                .arrived = peers_.at(peer, flag(kArrived, rank())),
                .number = operation_},
               copies_);
  copies_.record(*sent_);
  count_sent(1, copies_);
}

void PeerCopyTransfers::begin_gather(Tensor rows, Stream& stream) {
  TRI_REQUIRE(!gathering(rows), "rows {} are already being gathered", rows.shape_text());
  ++counts_.all_gathers;
  begin(ChannelOperation::kAllGather, rows.bytes() - local_rows(rows).bytes(), stream);
}

void PeerCopyTransfers::start_gather(Tensor rows, Stream& stream) {
  stream.record(*made_);
  copies_.wait(*made_);
  const Tensor local = local_rows(rows);
  for (int step = 1; step < size(); ++step) push((rank() + step) % size(), local.data, local.data, local.bytes());

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
  count_arrived(operation_);
}

bool PeerCopyTransfers::gathering(Tensor rows) const {
  return std::any_of(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows.data; });
}

std::vector<RowSplit> PeerCopyTransfers::splits(Tensor rows, OverlapSplit split) const {
  if (!gathering(rows)) return undivided(rows);
  const int64_t local = rows[0] / size();
  std::vector<RowSplit> splits;
  for (const auto& members : groups_of(arrival_order(), split.num_splits == 0 ? size() : split.num_splits))
    splits.push_back({members.front() * local, static_cast<int64_t>(members.size()) * local, members});
  return splits;
}

void PeerCopyTransfers::wait_split(Tensor rows, const RowSplit& split, Stream& stream) {
  Gather* gather = find(rows);
  if (gather == nullptr) return;
  const auto waited = [&](int member) { return gather->waited[static_cast<size_t>(member)]; };
  if (std::all_of(split.members.begin(), split.members.end(), waited)) return;
  const TimeCategoryScope scope(stream, category());
  for (const int member : split.members) {
    if (waited(member)) continue;
    stream.wait(*gather->arrived[static_cast<size_t>(member)]);
    gather->waited[static_cast<size_t>(member)] = true;
  }
}

void PeerCopyTransfers::finish_gather(Tensor rows, Stream& stream) {
  Gather* gather = find(rows);
  if (gather == nullptr) return;
  wait_split(rows, {.members = arrival_order()}, stream);
  gather->rows = nullptr;
}

std::vector<RowBlock> PeerCopyTransfers::begin_reduce(Tensor rows, OverlapSplit split, Stream& stream) {
  ++counts_.reduce_scatters;
  begin(ChannelOperation::kReduceScatter, rows.bytes() - local_rows(rows).bytes(), stream);
  reduce_ = operation_;
  next_buffer_ = (next_buffer_ + 1) % tensors_.incoming.size();
  direct_ = split.direct;
  part_ = local_rows(rows);
  TRI_REQUIRE(rows.bytes() <= tensors_.incoming[next_buffer_].bytes(), "a reduce of {} does not fit into buffers of {}",
              rows.shape_text(), tensors_.incoming[next_buffer_].shape_text());
  const int count = split.num_splits == 0 || split.direct ? size() : split.num_splits;
  std::vector<int> order;  // order of computation; the local block is last, but groups_of expects it first
  for (int step = 0; step < size(); ++step) order.push_back((rank() + step) % size());
  std::vector<std::vector<int>> groups = groups_of(order, count);
  std::rotate(groups.begin(), groups.begin() + (groups.size() > 1 ? 1 : 0), groups.end());

  const int64_t local = rows[0] / size();
  std::vector<RowBlock> blocks;
  for (const auto& owners : groups) {
    RowBlock block{.first = owners.front() * local,
                   .out = rows.rows(owners.front() * local, static_cast<int64_t>(owners.size()) * local),
                   .owners = owners};
    if (owners.size() == 1 && owners.front() == rank()) block.out = incoming(rank());
    if (owners.size() == 1 && owners.front() != rank() && direct_) {
      block.out = incoming(rank());
      block.out.data = peers_.at(owners.front(), static_cast<char*>(block.out.data));
    }
    blocks.push_back(std::move(block));
  }
  if (direct_) {
    const TimeCategoryScope scope(stream, category());
    for (int step = 1; step < size(); ++step) stream.wait_flag(flag(kReady, (rank() + step) % size()), operation_);
  }
  return blocks;
}

void PeerCopyTransfers::send(const RowBlock& block, Stream& stream) {
  TRI_REQUIRE(reduce_ == operation_, "a block of reduce {} was sent in operation {}", reduce_, operation_);
  if (block.owners.size() == 1 && block.owners.front() == rank()) return;
  const int64_t local = block.out[0] / static_cast<int64_t>(block.owners.size());
  if (direct_) {
    counts_.bytes += block.out.bytes();
    stream.set_flag(peers_.at(block.owners.front(), flag(kArrived, rank())), operation_);
    count_sent(1, stream);
    return;
  }
  stream.record(*made_);
  copies_.wait(*made_);
  for (int step = 1; step <= size(); ++step) {
    const int owner = (rank() + step) % size();
    const auto place = std::find(block.owners.begin(), block.owners.end(), owner) - block.owners.begin();
    if (place == static_cast<int64_t>(block.owners.size())) continue;
    const Tensor part = block.out.rows(place * local, local);
    const Tensor local_place = incoming(rank());
    if (owner != rank()) {
      push(owner, local_place.data, part.data, part.bytes());
      continue;
    }
    copies_.copy(local_place.data, part.data, part.bytes());
    copies_.record(*sent_);
  }
}

Tensor PeerCopyTransfers::finish_reduce(Stream& stream) {
  for (int step = 1; step < size(); ++step)
    arrivals_.wait_flag(flag(kArrived, (rank() + size() - step) % size()), reduce_);
  arrivals_.record(*reduced_);
  count_arrived(reduce_);
  const TimeCategoryScope scope(stream, category());
  stream.wait(*reduced_);
  stream.wait(*sent_);  // the local part is a copy too
  Tensor parts = incoming(0);
  parts.shape[0] *= size();
  return with_parts(parts, size());
}

namespace {

std::string split_name(const char* what, OverlapSplit split, int members) {
  const int num_splits = split.num_splits == 0 ? members : split.num_splits;
  if (split.direct) return fmt::format("{} by copies, direct", what);
  return fmt::format("{} by copies, {} split{}", what, num_splits, num_splits == 1 ? "" : "s");
}

}  // namespace

std::string PeerCopyTransfers::gather_name(OverlapSplit split) const { return split_name("gather", split, size()); }
std::string PeerCopyTransfers::reduce_name(OverlapSplit split) const { return split_name("reduce", split, size()); }

// Uses this rank's own memory in place of every peer's, on a null stream.
std::unique_ptr<AxisTransfers> PeerCopyTransfers::null_transfers(GroupOnStream null, Device& device) const {
  PeerMemory nowhere = peers_;
  std::fill(nowhere.base.begin(), nowhere.base.end(), peers_.base[static_cast<size_t>(peers_.rank)]);
  Stream& stream = null.stream();
  return std::make_unique<PeerCopyTransfers>(std::move(null), nowhere, tensors_, stream, stream, device);
}

}  // namespace tri
